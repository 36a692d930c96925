# SPDX-License-Identifier: Apache-2.0
"""An export of nsys holds the whole environment of the recorded program: no command may repeat any of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import COMMANDS, main

SECRET = "hf_abcdefghijklmnop"
FORMATS = ("table", "json", "csv", "md")
# Commands that read no trace, or write one.
WITHOUT_A_TRACE = {
    "demo",
    "record",
    "ab",
    "bench",
    "mcp",
    "recover",
    "merge",
    "peaks",
    "interconnect",
    "rules",
    "doctor",
    "exercise",
    "attach",
    "detach",
    "status",
}
IN_EVERY_FORMAT = (
    "lines",
    "kernels",
    "apis",
    "copies",
    "syncs",
    "ranges",
    "streams",
    "steps",
    "gaps",
    "overlap",
    "roofline",
    "memory",
    "counters",
    "energy",
    "check",
    "ranks",
    "collectives",
    "critical-path",
    "info",
)
# Each writes what OUT stands for.
THAT_WRITE = {
    "report": (["-o", "OUT.html"],),
    "export": tuple(
        ["--to", form, "-o", f"OUT.{ending}"]
        for form, ending in (
            ("perfetto", "json"),
            ("perfetto", "json.gz"),
            ("speedscope", "json"),
            ("collapsed", "txt"),
            ("parquet", "d"),
        )
    ),
}


@pytest.fixture(params=["nsys", "recorder"])
def recording(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    builder = TraceBuilder(form=request.param)
    for _ in range(6):
        begin = builder.now_ns
        builder.launch("gemm", 9000, stack="/app/train.py:7 main", peek=1).copy("HtoD", 1000)
        builder.launch("gemm", 9000, stack="/app/train.py:7 main", pid=200, device=1)
        builder.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 900, stack="/app/train.py:8 main")
        builder.operator("aten::mul", 1000, read=512, written=256, stack="/app/train.py:9 main")
        builder.call("cudaDeviceSynchronize").gap(90_000)
        for pid in (100, 200):
            builder.range("training_step", begin, builder.now_ns, globalTid=builder.tid(1, pid))
    builder.row("PROCESSES", globalPid=builder.tid(1) & ~0xFFFFFF, pid=100, name="python")
    texts = (SECRET, f"TOKEN={SECRET}", f"--api-key {SECRET}")
    for i, name in enumerate(
        ("ENVIRONMENT_VARIABLE", "ARGUMENTS", "CAPTURE_EVENT_TYPE", "CUDA_GRAPH_TRACE_OPTIONS:MODE")
    ):
        builder.row("META_DATA_CAPTURE", name=f"PROCESS_0:{name}", value=texts[i % 3])
    builder.row("META_DATA_CAPTURE", name=SECRET, value="true")
    builder.row("META_DATA_EXPORT", name="EXPORT_PARAM_INPUT_FILE", value=texts[0])
    for name in ("DeviceEnvironment", "Hostname", "CommandLine"):
        builder.row(
            "TARGET_INFO_SYSTEM_ENV", globalVid=1, devStateName="X", name=name, nameEnum=1, value=texts[1]
        )
    memory = {"globalPid": builder.tid(1) & ~0xFFFFFF, "deviceId": 0}
    builder.row("PYREC_MEMORY_DEVICE", settings=json.dumps({SECRET: texts[1]}), **memory)
    builder.row("PYREC_MEMORY_EVENT", start=1, action=0, address=512, bytes=100, stackId=0, **memory)
    for i in range(3):
        builder.row("PYREC_ENERGY", start=builder.now_ns - i * 200_000, energyMj=9000 - 1000 * i, **memory)
    for i in range(250):
        builder.row("PYREC_COUNTERS", start=i * 2_000, end=i * 2_000 + 2_000, dramReadBytes=i, **memory)
    return builder.write(tmp_path / "run.sqlite")


def everything_written(folder: Path) -> str:
    """All text of all files, unpacked."""
    texts = []
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".parquet":
            from pyarrow import parquet

            texts.append(str(parquet.read_table(path).to_pydict()))
        elif path.is_file():
            data = path.read_bytes()
            texts.append((gzip.decompress(data) if path.suffix == ".gz" else data).decode(errors="replace"))
    return "\n".join(texts)


@pytest.mark.parametrize("command", [*(c for c in IN_EVERY_FORMAT if c in COMMANDS), "diff"])
def test_nothing_of_it_is_printed(recording: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    files = [str(recording)] * (2 if command == "diff" else 1)
    for form in FORMATS:
        assert main([command, *files, "--format", form]) in (0, 1), form
        out, err = capsys.readouterr()
        assert out and SECRET not in out + err


@pytest.mark.parametrize("command", [command for command in THAT_WRITE if command in COMMANDS])
def test_nothing_of_it_is_written(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for i, options in enumerate(THAT_WRITE[command]):
        folder = tmp_path / f"out{i}"
        folder.mkdir()
        named = [option.replace("OUT", str(folder / "written")) for option in options]
        assert main([command, str(recording), *named]) == 0, options
        out, err = capsys.readouterr()
        text = everything_written(folder)
        assert len(text) > 100 and SECRET not in text + out + err, options


def test_nothing_of_it_is_in_the_command_line_of_ncu(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ncu", str(recording), "--line", "train.py:9", "--dry-run", "--", "python"]) == 0
    assert main(["ncu", str(recording), "--line", "train.py:1", "--dry-run", "--", "python"]) == 2
    out, err = capsys.readouterr()
    assert "mul_kernel0" in out and "train.py:7" in err and SECRET not in out + err


def test_every_command_was_asked() -> None:
    """A new command that reads a trace belongs into the lists above."""
    assert set(COMMANDS) - {"diff", "ncu", *IN_EVERY_FORMAT, *THAT_WRITE} == WITHOUT_A_TRACE


def test_errors_do_not_repeat_it(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--nvtx", "nothing"], ["--step", "99"], ["--rank", "9"], ["--range", "9s:"]):
        assert main(["lines", str(recording), *options]) in (2, 3)
        assert SECRET not in capsys.readouterr().err
