# SPDX-License-Identifier: Apache-2.0
"""What info says of a file, and what it must never say."""

from __future__ import annotations

import json
from pathlib import Path

from builders import TraceBuilder

from profiling_lab.analysis.info import TraceInfo, info
from profiling_lab.report.info import info_report
from profiling_lab.trace import Trace

SECRET = "hf_abcdefghijklmnop"


def facts_of(builder: TraceBuilder, tmp_path: Path) -> TraceInfo:
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        return info(trace)


def rows(facts: TraceInfo) -> dict[str, int]:
    return {part.key: part.rows for part in facts.recorded}


def test_a_recording_of_ours(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 10, stack="a.py:1 f", peek=1).copy("HtoD", 5).memset(1)
    builder.launch("gemm_t", 10, thread=2, node=0, node_name="MmBackward0", peek=0)
    builder.row(
        "TARGET_INFO_GPU",
        vmId=1,
        id=0,
        name="NVIDIA H200",
        smCount=132,
        totalMemory=1 << 37,
        computeMajor=9,
        computeMinor=0,
    )
    builder.row(
        "TARGET_INFO_SYSTEM_ENV",
        globalVid=1,
        devStateName="System",
        name="NvDriverVersion",
        nameEnum=205,
        value="580.65",
    )
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000 * 10**9)
    builder.row("ANALYSIS_DETAILS", globalVid=1, duration=5_000, startTime=0, stopTime=5_000)
    builder.row("PROCESSES", globalPid=builder.tid(1) & ~0xFFFFFF, pid=100, name="python")
    builder.row("PROFILER_OVERHEAD", start=0, end=70, nameId=0, overheadType=3)
    builder.row("PROFILER_OVERHEAD", start=0, end=900, nameId=0, overheadType=6)
    facts = facts_of(builder, tmp_path)
    assert rows(facts) | {
        "kernels": 2,
        "copies": 1,
        "sets": 1,
        "calls": 4,
        "python_stacks": 1,
        "autograd": 1,
    } == rows(facts)
    assert (facts.gpus[0].name, facts.gpus[0].compute, facts.gpus[0].multiprocessors) == (
        "NVIDIA H200",
        "9.0",
        132,
    )
    assert (facts.driver, facts.duration_ns, facts.started_utc) == ("580.65", 5000, "2023-11-14 22:13:20 UTC")
    assert facts.processes == ("pid 100 python",)
    assert facts.overhead_ns == 70, "loading modules is the program's own doing"
    assert ("recorder_version", "test") in facts.recorder


def test_options_that_were_off_in_our_recorder_are_named(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 10)
    for state in ("stacks_state", "nvtx_state"):
        builder.row("PYREC_META", name=state, value="switched off")
    facts = facts_of(builder, tmp_path)
    missing = {part.key: part.missing for part in facts.recorded if not part.rows}
    assert missing["python_stacks"] == "profiling-lab record without --no-stacks"
    assert missing["nvtx"] == "profiling-lab record without --no-nvtx"
    assert missing["os_calls"].startswith("nsys profile --trace=osrt"), "ours has none, and says who has"
    assert "CUPTI" in facts.method and facts.options == ()


def test_ranks(tmp_path: Path) -> None:
    one = TraceBuilder().launch("gemm", 10)
    assert facts_of(one, tmp_path).ranks == ()
    two = TraceBuilder().launch("gemm", 10, pid=200).launch("gemm", 10, pid=100)
    told = "(by process id: the file does not name ranks)"
    (tmp_path / "two").mkdir()
    assert facts_of(two, tmp_path / "two").ranks == (f"rank 0 is pid 100 {told}", f"rank 1 is pid 200 {told}")
    noted = TraceBuilder().launch("gemm", 10).row("PYREC_META", name="rank", value="3")
    (tmp_path / "noted").mkdir()
    assert facts_of(noted, tmp_path / "noted").ranks == ("rank 3 is pid 100",)


def test_the_options_of_torch_profiler(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {}}
    facts = {"with_stack": 1, "record_shapes": 0, "distributedInfo": {"backend": "nccl", "rank": 2}}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, **facts, "traceEvents": [event]}))
    with Trace.open(path) as trace:
        found = info(trace)
    assert found.options == ("with_stack=True",) and found.ranks == ("rank 2 is pid 0",)
    missing = {part.key: part.missing for part in found.recorded if not part.rows}
    assert "enable_cuda_sync_events" in missing["syncs"] and "step()" in missing["steps"]


def test_what_is_missing_names_the_option_of_nsys(tmp_path: Path) -> None:
    facts = facts_of(TraceBuilder(form="nsys").launch("gemm", 10), tmp_path)
    missing = {part.key: part.missing for part in facts.recorded if not part.rows}
    assert "--python-backtrace=cuda" in missing["python_stacks"]
    assert "--pytorch=autograd-nvtx" in missing["autograd"]
    assert "--sample" in missing["cpu_samples"]
    assert missing["copies"] == "", "CUDA was traced, so there were none"
    assert facts.gpus == () and facts.driver == "" and facts.duration_ns is None and facts.overhead_ns is None


def test_a_trace_without_gpu_work_still_has_facts(tmp_path: Path) -> None:
    path = TraceBuilder(form="nsys").call("cudaMalloc").write(tmp_path / "t.sqlite")
    with Trace.open(path) as trace:
        report = info_report(trace, info(trace), None)
    assert any("nothing ran on the GPU" in line for line in report.header)
    assert report.coverage == {}


def test_warnings_of_the_recorder_are_shown(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 10)
    texts = {1: "Profiling has started.", 2: "Some events\twere lost.", 3: "Fatal."}
    for severity, text in texts.items():
        builder.row("DIAGNOSTIC_EVENT", timestamp=0, timestampType=1, source=1, severity=severity, text=text)
    assert facts_of(builder, tmp_path).warnings == ("Some events were lost.", "Fatal.")


def test_secrets_of_the_environment_stay_in_the_file(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys").launch("gemm", 10)
    builder.row("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f"TOKEN={SECRET}")
    builder.row("META_DATA_CAPTURE", name="PROCESS_0:ARGUMENTS", value=SECRET)
    builder.row(
        "TARGET_INFO_SYSTEM_ENV",
        globalVid=1,
        devStateName="X",
        name="DeviceEnvironment",
        nameEnum=1,
        value=SECRET,
    )
    path = builder.write(tmp_path / "t.sqlite")
    with Trace.open(path) as trace:
        assert SECRET not in repr(info_report(trace, info(trace), None))
        assert SECRET not in repr(info(trace))


def test_a_folder_of_tables_is_as_large_as_its_files(tmp_path: Path) -> None:
    from pyarrow import parquet, table

    folder = tmp_path / "run_pqtdir"
    folder.mkdir()
    columns = {
        "start": [1],
        "end": [9],
        "deviceId": [0],
        "streamId": [7],
        "correlationId": [1],
        "shortName": [1],
    }
    parquet.write_table(
        table(columns | {"globalPid": [1 << 24]}), folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    )
    parquet.write_table(table({"id": [1], "value": ["gemm"]}), folder / "StringIds.parquet")
    with Trace.open(folder) as trace:
        facts = info(trace)
    assert facts.file_bytes == sum(file.stat().st_size for file in folder.iterdir())
    assert rows(facts)["kernels"] == 1
