# SPDX-License-Identifier: Apache-2.0
"""What is read from the events of torch.profiler, against a plain reading with json and known truth."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path
from typing import Any

import fuzz_chrome
import numpy as np
import pytest
from fuzz_chrome import ENGINE, EVALUATES, MAIN, Document, Event, arrow, document, event, of_2021

from profiling_lab.analysis.info import info
from profiling_lab.analysis.lines import lines
from profiling_lab.analysis.memory.peaks import MemoryPeak, memory_peaks
from profiling_lab.trace import Trace
from profiling_lab.trace.attribution import Match
from profiling_lab.trace.columns import OperationKind, OverheadKind, SyncKind
from profiling_lab.trace.extras import LaunchShape
from profiling_lab.trace.kineto.collectives import Collective
from profiling_lab.trace.kineto.flows import FlowAgreement, flow_agreement
from profiling_lab.trace.kineto.source import ChromeSource

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "analysis"
TABLE_OF = {
    "kernel": "operations", "gpu_memcpy": "operations", "gpu_memset": "operations", "memcpy": "operations",
    "memset": "operations", "cuda_runtime": "calls", "cuda_driver": "calls", "runtime": "calls",
    "cpu_op": "operators", "operator": "operators", "user_annotation": "operators",
    "python_function": "python", "cuda_sync": "syncs", "overhead": "overheads",
}  # fmt: skip


def write(path: Path, doc: Document | list[Event]) -> Path:
    path.write_text(json.dumps(doc))
    return path


def source_of(trace: Trace) -> ChromeSource:
    assert isinstance(trace.source, ChromeSource)
    return trace.source


def read_plainly(doc: Document) -> dict[str, list[tuple[Any, ...]]]:
    """name, start, end and correlation of every event by table, with Python's own json."""
    out: dict[str, list[tuple[Any, ...]]] = {name: [] for name in set(TABLE_OF.values())}
    for e in json.loads(json.dumps(doc))["traceEvents"]:
        table = TABLE_OF.get(str(e.get("cat")).lower())
        if e.get("ph") != "X" or table is None:
            continue
        start, took = round(e["ts"] * 1000), round(e["dur"] * 1000)
        out[table].append((e["name"], start, start + took, e["args"].get("correlation")))
    return out


@pytest.mark.parametrize("seed", range(20))
def test_columns_equal_a_plain_reading(seed: int) -> None:
    dice = random.Random(seed)
    doc = of_2021(document()) if seed % 2 else document()
    for e in doc["traceEvents"]:
        e["ts"] = round(e.get("ts", 0) + dice.uniform(-10, 10), 3)
        e["name"] = e["name"] + dice.choice(("", '"', "\\", "/", "\t", "π", "\U0001f600", "{[", "}]"))
    dice.shuffle(doc["traceEvents"])
    text = json.dumps(doc, indent=dice.choice((None, 1)), ensure_ascii=dice.random() < 0.5).encode()
    tables, (texts, no_utf8), _, root, damage, _ = fuzz_chrome.read_in_pieces(
        text, lambda: dice.randint(1, 99)
    )
    assert not any(damage.values()) and no_utf8 == 0
    for name, expected in read_plainly(doc).items():
        table = tables[name]
        names = [texts[i] for i in table["name"].tolist()]
        if name != "python":  # addresses are cut off these
            assert names == [e[0].replace("\t", " ") for e in expected]
        assert table["start_ns"].tolist() == [e[1] for e in expected]
        assert table["end_ns"].tolist() == [e[2] for e in expected]
        if "correlation" in table:
            missing = int(np.iinfo(np.int64).min)
            assert table["correlation"].tolist() == [missing if e[3] is None else e[3] for e in expected]
    assert {key: json.loads(value) for key, value in root.items()} == {
        key: value for key, value in doc.items() if key != "traceEvents"
    }


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Any:
    if not BENCHMARKS.is_dir():
        pytest.skip("the benchmarks are next to the tests only in a checkout")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import chrome_trace_generator

    yield chrome_trace_generator
    sys.modules.pop("chrome_trace_generator")


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_generated_training_run_to_the_nanosecond(tmp_path: Path, generator: Any, packed: bool) -> None:
    path = tmp_path / "t.json"
    truth = generator.generate(path, size_bytes=6 << 20)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes(), 1))
    with Trace.open(path) as trace:
        result = lines(trace, own=("model.py", "train.py"))
        found = {row.key: [row.gpu_ns - row.backward_ns, row.backward_ns, row.kernels] for row in result.rows}
        assert found == truth.lines
        assert result.coverage.gpu_ns == truth.gpu_ns and not trace.repairs
        source = source_of(trace)
        assert len(source.events["python"]["name"]) == truth.python_functions
        arrows = flow_agreement(source.events)
        assert arrows.agree == arrows.arrows > 400 and arrows.loose == 0
        modules = {row.function for row in lines(trace, by="module", own=("model.py",)).rows}
        assert "Block" in modules
        assert int(trace.operations.start_ns.min()) > generator.BASE_NS


def python(name: str, ts: float, dur: float, number: int, parent: int | None, tid: int = MAIN) -> Event:
    return event("python_function", name, ts, dur, tid, **{"Python id": number, "Python parent id": parent})


def launched(*python_events: Event, ts: float = 50) -> list[Event]:
    call = event("cuda_runtime", "cudaLaunchKernel", ts, 1, correlation=1)
    return [*python_events, call, event("kernel", "k", ts + 2, 5, 7, 0, correlation=1)]


def stack_of_the_call(tmp_path: Path, events: list[Event]) -> list[str]:
    with Trace.open(write(tmp_path / "t.json", {"traceEvents": events})) as trace:
        return [str(frame) for frame in trace.stacks.of(int(trace.calls.stack[0]))]


def test_the_caller_that_an_event_names_counts_not_its_times(tmp_path: Path) -> None:
    # By its times the middle function had ended before the inner one began.
    events = launched(
        python("a.py(1): outer", 0, 100, 1, None),
        python("b.py(2): middle", 10, 10, 2, 1),
        python("c.py(3): inner", 40, 30, 3, 2),
    )
    assert stack_of_the_call(tmp_path, events) == ["c.py:3 inner", "b.py:2 middle", "a.py:1 outer"]


def test_callers_that_are_not_in_the_file_are_found_by_time(tmp_path: Path) -> None:
    events = launched(python("a.py(1): outer", 0, 100, 1, None), python("c.py(3): inner", 40, 30, 3, 99))
    assert stack_of_the_call(tmp_path, events) == ["c.py:3 inner", "a.py:1 outer"]
    for e in events[:2]:  # before 1.12 there were no ids
        del e["args"]["Python id"], e["args"]["Python parent id"]
    assert stack_of_the_call(tmp_path, events) == ["c.py:3 inner", "a.py:1 outer"]


def test_callers_in_a_circle_end(tmp_path: Path) -> None:
    events = launched(python("a.py(1): f", 0, 100, 1, 2), python("b.py(2): g", 0, 100, 2, 1))
    assert sorted(stack_of_the_call(tmp_path, events)) in (
        ["a.py:1 f"],
        ["a.py:1 f", "b.py:2 g"],
        ["b.py:2 g"],
    )


def test_forward_has_the_class_of_its_module(tmp_path: Path) -> None:
    call_impl = "torch/nn/modules/module.py(1786): _call_impl"
    events = launched(
        python("nn.Module: Net_0", 0, 100, 1, None),
        python(call_impl, 1, 98, 2, 1),
        python("m.py(9): forward", 2, 96, 3, 2),
        python("m.py(20): mix", 3, 94, 4, 3),
        python("nn.Module: my_Layer_12", 4, 92, 5, 4),
        python(call_impl, 5, 90, 6, 5),
        python("<built-in method __enter__ of object at 0x7f01>", 6, 88, 7, 6),
        python("m.py(30): forward", 7, 86, 8, 7),
        python("m.py(40): forward", 8, 84, 9, 8),
    )
    stack = [frame for frame in stack_of_the_call(tmp_path, events) if "module.py" not in frame]
    assert stack == ["m.py:40 forward", "m.py:30 my_Layer.forward", "m.py:20 mix", "m.py:9 Net.forward"]


def test_waits_overheads_collectives_and_the_gpu(tmp_path: Path) -> None:
    with Trace.open(write(tmp_path / "t.json", document())) as trace:
        source = source_of(trace)
        noted = source.syncs(trace)
        assert noted.kind.tolist() == [SyncKind.STREAM] * 3 and noted.correlation.tolist() == [5, 15, 25]
        assert (noted.end_ns - noted.start_ns).tolist() == [9000] * 3
        assert noted.stream.tolist() == [-1] * 3
        assert trace.overheads.kind.tolist() == [OverheadKind.LAZY_FUNCTION_LOADING] * 3
        assert set(trace.overheads.process.tolist()) == set(trace.calls.process.tolist()), (
            "pid -1 is the process"
        )
        rows = [row for row, _ in source.noted_collectives()]
        assert [trace.operations.names[i] for i in trace.operations.name[rows]] == [
            "ncclDevKernel_AllReduce"
        ] * 3
        assert source.noted_collectives().of(rows[1]) == Collective(
            "allreduce", "", (), 2, -1, 9, -1, "Float"
        )
        assert source.noted_collectives().of(rows[1] + 1) is None
        assert source.events.facts["distributedInfo"] == {"backend": "nccl", "rank": 0, "world_size": 2}
        assert flow_agreement(source.events) == FlowAgreement(arrows=3, agree=3, loose=0)
        facts = info(trace)
        assert (facts.gpus[0].name, facts.gpus[0].multiprocessors) == ("NVIDIA H200", 132)
        assert facts.warnings == ()
        kinds = trace.operations.kind.tolist()
        assert kinds.count(OperationKind.COPY) == kinds.count(OperationKind.SET) == 3


def test_launches_and_shapes_of_inputs(tmp_path: Path) -> None:
    doc = document()
    sizes = {"grid": [132, 2, 1], "block": [256, 1, 1], "registers per thread": 64, "shared memory": 49152}
    kernels = [e for e in doc["traceEvents"] if e.get("cat") == "kernel"]
    for e, wrong in zip(
        kernels, ({}, {"registers per thread": None}, {"grid": [1, 2]}, {"grid": "N/A"}), strict=False
    ):
        e["args"] |= sizes | wrong
    with Trace.open(write(tmp_path / "t.json", doc)) as trace:
        read, inputs = trace.launch_shapes, trace.input_shapes
        assert read is not None and inputs is not None
        at = read.number[trace.operations.kind == OperationKind.KERNEL].tolist()
        assert at == [0, 1, -1, -1, 2, -1, -1, 2, -1]
        assert read.shapes[0] == LaunchShape((132, 2, 1), (256, 1, 1), 64, 49152)
        assert inputs.texts == ("", "[[2, 3], [3]]")
        names = [trace.ranges.names[i] for i in trace.ranges.name[inputs.number == 1].tolist()]
        assert names == ["aten::mm"] * 3
        assert [str(shape) for shape in read.shapes[:1]] == ["<<<132x2x1, 256x1x1>>>"]
        assert (read.shapes[0].registers, read.shapes[1].registers) == (64, None)
        assert [inputs.texts[i] for i in inputs.number.tolist()].count("[[2, 3], [3]]") == 3


def note(ts: float, device: int, size: int, kind: int = 1, **totals: int) -> Event:
    """An allocation of torch's own allocator."""
    args = {"Total Reserved": totals["reserved"]} if "reserved" in totals else {}
    args |= {"Device Type": kind, "Device Id": device, "Bytes": size, "Addr": 1}
    name = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 11, "tid": MAIN}
    return {**name, "ts": ts, "args": args}


def test_the_peak_of_memory(tmp_path: Path) -> None:
    events = [
        note(10, 0, 100, reserved=1000),
        note(20, 0, 900, reserved=4000),
        note(30, 0, -900, reserved=4000),
        note(40, 1, 70),  # torch 1.9 noted no totals: they are summed up
        note(50, 1, 80),
        note(60, 1, -70),
        note(70, -1, 10**9, kind=0, reserved=10**10),  # the memory of the host
    ]
    with Trace.open(write(tmp_path / "t.json", {"traceEvents": launched() + events})) as trace:
        assert memory_peaks(trace) == (
            MemoryPeak(0, 0, 4000, 20_000, None),
            MemoryPeak(0, 1, 150, 50_000, None),
        )
    with Trace.open(write(tmp_path / "t.json", {"traceEvents": launched()})) as trace:
        assert memory_peaks(trace) is None


def test_arrows_that_contradict_the_numbers_are_said(tmp_path: Path) -> None:
    doc = document()
    for e in doc["traceEvents"]:
        if e.get("ph") == "s" and e["id"] == 10:
            e["ts"] -= 2  # at aten::linear, which has the number too but did not make the node
    with Trace.open(write(tmp_path / "t.json", doc)) as trace:
        assert flow_agreement(source_of(trace).events) == FlowAgreement(arrows=3, agree=2, loose=0)
        (warning,) = info(trace).warnings
        assert warning.startswith("1 of 3 arrows")


def forward_and_backward(sequence: int, thread: int, counter: int, ts: float, line: str) -> list[Event]:
    """A GEMM on one of several threads that count their nodes from 0 each, and its backward."""
    forward = {"Sequence number": sequence, "Fwd thread id": 0}
    backward = {"Sequence number": sequence, "Fwd thread id": counter}
    number = 100 * counter + sequence
    return [
        python(f"{line}: f", ts, 10, number, None, thread),
        event("cpu_op", "aten::mm", ts + 1, 8, thread, **forward),
        event("cuda_runtime", "cudaLaunchKernel", ts + 2, 2, thread, correlation=2 * number),
        event("kernel", "fwd", ts + 20, 1, 7, 0, correlation=2 * number),
        arrow("s", number, thread, ts + 1),
        event("cpu_op", f"{EVALUATES}: MmBackward0", ts + 500, 9, ENGINE, **backward),
        event("cpu_op", "MmBackward0", ts + 501, 7, ENGINE, **backward),
        event("cuda_runtime", "cudaLaunchKernel", ts + 502, 2, ENGINE, correlation=2 * number + 1),
        event("kernel", "bwd", ts + 520, 5, 7, 0, correlation=2 * number + 1),
        arrow("f", number, ENGINE, ts + 501),
    ]


def test_threads_that_count_their_nodes_separately(tmp_path: Path) -> None:
    events = forward_and_backward(0, 21, 1, 0, "a.py(1)") + forward_and_backward(0, 22, 2, 100, "b.py(2)")
    with Trace.open(write(tmp_path / "t.json", {"traceEvents": events})) as trace:
        rows = {row.key: (row.forward_ns, row.backward_ns) for row in lines(trace).rows}
        assert rows == {"a.py:1": (1000, 5000), "b.py:2": (1000, 5000)}
        assert set(trace.attribution.match.tolist()) == {Match.OWN, Match.EXACT}
    without = [e for e in events if e["ph"] == "X"]
    with Trace.open(write(tmp_path / "t.json", {"traceEvents": without})) as trace:
        assert Match.INFERRED in trace.attribution.match.tolist(), (
            "without arrows there is a doubt, and it is said"
        )


def test_rocm(tmp_path: Path) -> None:
    call = event("cuda_runtime", "hipLaunchKernel", 50, 1, correlation=1, cid=3, kernel="k", grid="[1,1,1]")
    events = [python("a.py(1): f", 0, 90, 1, None), call, event("kernel", "k", 52, 5, 7, 0, correlation=1)]
    with Trace.open(write(tmp_path / "t.json", events)) as trace:
        assert [(row.key, row.gpu_ns) for row in lines(trace).rows] == [("a.py:1", 5000)]


def test_a_base_time_is_not_added_to_what_counts_from_1970_already(tmp_path: Path) -> None:
    since_1970_us = 1_700_000_000_000_000
    events = launched(ts=since_1970_us)
    for base_ns in (0, 1_690_000_000 * 10**9):
        doc = {"baseTimeNanoseconds": base_ns, "traceEvents": events}
        with Trace.open(write(tmp_path / "t.json", doc)) as trace:
            assert int(trace.calls.start_ns[0]) == since_1970_us * 1000
