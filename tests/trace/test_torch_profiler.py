# SPDX-License-Identifier: Apache-2.0
"""Files of torch.profiler, of 2021 and of today."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profiling_lab.analysis.info import info
from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.lines import lines
from profiling_lab.errors import NotEnoughDataError, UnreadableInputError
from profiling_lab.trace import Trace
from profiling_lab.trace.attribution import Match, Phase

MAIN, ENGINE = 11, 12


def event(
    cat: str, name: str, ts: float, dur: float, tid: int = MAIN, pid: int = 11, **args: Any
) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def number(sequence: int, forward_thread: int = 0) -> dict[str, int]:
    return {"Sequence number": sequence, "Fwd thread id": forward_thread}


def today() -> list[dict[str, Any]]:
    """One GEMM forward and backward, and the gradient added up, as torch 2 writes it."""
    return [
        event("python_function", "train.py(20): main", 0, 100),
        event("python_function", "nn.Module: Linear_0", 5, 50),
        event("python_function", "model.py(7): forward", 8, 40),
        event("python_function", "<built-in function linear>", 9, 30),
        event("cpu_op", "aten::linear", 10, 28, **number(3)),
        event("cpu_op", "aten::mm", 12, 20, **number(3)),
        event("cuda_runtime", "cudaLaunchKernel", 15, 5, correlation=1),
        event(
            "kernel", "void gemm<float>(int)", 30.5, 10.25, tid=7, pid=0, correlation=1, device=0, stream=7
        ),
        event(
            "cpu_op", "autograd::engine::evaluate_function: MmBackward0", 200, 50, tid=ENGINE, **number(3, 1)
        ),
        event("cpu_op", "MmBackward0", 205, 30, tid=ENGINE, **number(3, 1)),
        event("cpu_op", "aten::mm", 210, 20, tid=ENGINE),
        event("cuda_driver", "cuLaunchKernelEx", 212, 4, tid=ENGINE, correlation=2),
        event("kernel", "void gemm_t<float>(int)", 220, 20, tid=7, pid=0, correlation=2, device=0, stream=7),
        event("cpu_op", "torch::autograd::AccumulateGrad", 260, 20, tid=ENGINE),
        event("cuda_runtime", "cudaLaunchKernel", 262, 4, tid=ENGINE, correlation=3),
        event("kernel", "add", 270, 5, tid=7, pid=0, correlation=3, device=0, stream=7),
        event(
            "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 300, 8, tid=7, pid=0, correlation=99, bytes=64
        ),
        {"ph": "s", "cat": "ac2g", "id": 1, "pid": 11, "tid": MAIN, "ts": 15},
    ]


def write(path: Path, events: list[dict[str, Any]], **root: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **root, "traceEvents": events}))
    return path


def test_todays_format(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", today(), baseTimeNanoseconds=1_700_000_000 * 10**9)
    with Trace.open(path) as trace:
        assert trace.operations.start_ns[0] == 1_700_000_000 * 10**9 + 30_500
        assert trace.operations.duration_ns.tolist() == [10_250, 20_000, 5_000, 8_000]
        assert trace.operations.short_names == ("gemm", "gemm_t", "add", "memcpy HtoD")
        assert trace.attribution.phase.tolist() == [
            Phase.FORWARD,
            Phase.BACKWARD,
            Phase.BACKWARD,
            Phase.UNKNOWN,
        ]
        result = lines(trace)
        (row,) = result.rows
        assert (row.key, row.function, row.forward_ns, row.backward_ns) == (
            "model.py:7",
            "Linear.forward",
            10_250,
            25_000,
        )
        reasons = {u.reason.split(":")[0].split(",")[0]: u.ns for u in result.coverage.unattributed}
        assert reasons == {
            "launched before the recording began": 8_000,
        }
        assert any("where its function begins" in note for note in result.coverage.notes)
        facts = info(trace)
        assert (facts.product, facts.started_utc) == ("torch.profiler", "2023-11-14 22:13:20 UTC")
        assert {part.key: part.rows for part in facts.recorded}["autograd"] == 4
    with Trace.open(path) as trace:
        (place,) = top_kernels(trace).rows[0].stacks
        assert [str(f) for f in place.frames] == ["model.py:7 Linear.forward", "train.py:20 main"]


def test_gzip_and_bare_lists_read_the_same(tmp_path: Path) -> None:
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(json.dumps({"traceEvents": today()}).encode()))
    bare = tmp_path / "t.json"
    bare.write_text(json.dumps(today()))
    for path in (packed, bare):
        with Trace.open(path) as trace:
            assert [row.key for row in lines(trace).rows] == ["model.py:7"]


def test_what_is_no_json_in_real_files_is_repaired_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", today())
    text = path.read_text().replace(
        '"bytes": 64', '"bytes": 64, "memory bandwidth (GB/s)": N/A, "x": -Infinity'
    )
    path.write_text(
        text.replace("aten::linear", "aten::\nlinear").replace('"id": 1', '"id": 99999999999999999999999')
    )
    with Trace.open(path) as trace:
        assert [row.key for row in lines(trace).rows] == ["model.py:7"]
        assert sum(trace.repairs.values()) == 3


def test_events_without_a_sensible_time_are_left_out_and_counted(tmp_path: Path) -> None:
    events = today()
    for wrong in (-5, 10**15, "long", None):
        events.append(event("kernel", "wild", 1, 1, correlation=1) | {"dur": wrong})
    with Trace.open(write(tmp_path / "t.json", events)) as trace:
        assert "wild" not in trace.operations.names
        assert [count for what, count in trace.repairs.items() if "sensible time" in what] == [4]


def test_arguments_of_a_wrong_type_are_unknown(tmp_path: Path) -> None:
    events = today()
    events[7]["args"] |= {"correlation": "1", "device": None, "stream": [7]}
    with Trace.open(write(tmp_path / "t.json", events)) as trace:
        assert trace.operations.correlation[0] == 1 and trace.operations.stream[0] == -1
        assert trace.operations.device[0] == 0


def test_without_stacks_the_option_is_named(tmp_path: Path) -> None:
    events = [e for e in today() if e["cat"] != "python_function"]
    with Trace.open(write(tmp_path / "t.json", events)) as trace:
        with pytest.raises(NotEnoughDataError, match="with_stack=True"):
            lines(trace)
        rows = {row.key: (row.forward_ns, row.backward_ns) for row in lines(trace, by="range").rows}
        assert rows == {"aten::mm": (10_250, 20_000)}


def test_a_file_without_gpu_work(tmp_path: Path) -> None:
    events = [e for e in today() if e["cat"] == "cpu_op"]
    with Trace.open(write(tmp_path / "t.json", events)) as trace:
        with pytest.raises(NotEnoughDataError, match=r"ProfilerActivity\.CUDA"):
            lines(trace)
        assert info(trace).recorded[0].missing == "ProfilerActivity.CUDA"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"a": 1}', "it has no events of it"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kern', "not a trace of torch.profiler"),
        (b'{"traceEvents": 5}', "not a trace of torch.profiler"),
        (b"{" * 5000, "not a trace of torch.profiler"),
        (gzip.compress(bytes(range(256)) * 500)[:-40], "is not a trace"),
        (b'{"traceEvents": []}', "list of events has none"),
        (b'[{"ph": "X", "cat": "kernel"}, {"cat": "kernel"}]', "no event in it has a valid time"),
    ],
    ids=["other-json", "cut", "wrong-type", "nested", "cut-gzip", "empty", "no-times"],
)
def test_unreadable(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableInputError, match=says) as caught:
        Trace.open(path)
    assert "\n" not in str(caught.value)


def test_resnet50_of_2021_line_by_line(captures: Path) -> None:
    """The lines of torchvision's resnet.py, forward and backward in ms, worked out from this file before.
    What adds gradients up came later: 3.0 ms in all."""
    truth = {
        128: (36.7, 85.7),
        132: (34.4, 72.6),
        124: (38.4, 79.5),
        136: (18.0, 39.7),
        133: (16.5, 28.7),
        138: (15.6, 0.0),
    }
    with Trace.open(captures / "resnet50_num_workers_0.pt.trace.json.gz") as trace:
        result = lines(trace, own=("torchvision", "resnet50_profiler_api.py"))
        found = {row.line: row for row in result.rows if row.file.endswith("resnet.py")}
        for line, (forward, backward) in truth.items():
            assert (round(found[line].forward_ns / 1e6, 1), round(found[line].backward_ns / 1e6, 1)) == (
                forward,
                backward,
            )
        added = trace.attribution.match == Match.NO_NUMBER
        assert round(trace.operations.duration_ns[added].sum() / 1e6, 1) == 3.0
        coverage = result.coverage
        assert coverage.gpu_ns == 603_558_000 and coverage.span_ns == 996_477_000
        assert coverage.attributed_frac > 0.96
        assert coverage.attributed_ns + sum(u.ns for u in coverage.unattributed) == coverage.gpu_ns
        attribution = trace.attribution
        backward = attribution.phase == Phase.BACKWARD
        duration = trace.operations.duration_ns
        assert round(duration[backward & (attribution.match == Match.EXACT)].sum() / 1e6, 1) == 367.8
        assert (attribution.call >= 0).all() and attribution.dropped_ranges == 0
        assert info(trace).gpus[0].name == "Tesla V100-DGXS-32GB"


def test_the_pair_differs_in_idle_time_not_in_work(captures: Path) -> None:
    idle, work = [], []
    for workers in (0, 4):
        with Trace.open(captures / f"resnet50_num_workers_{workers}.pt.trace.json.gz") as trace:
            coverage = lines(trace, by="kernel").coverage
            idle.append(round((coverage.span_ns - coverage.busy_ns) / 1e6))
            work.append(coverage.gpu_ns)
    assert idle == [393, 187]
    assert np.isclose(work[0], work[1], rtol=0.02)
