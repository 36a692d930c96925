# SPDX-License-Identifier: Apache-2.0
"""Chrome's JSON: nothing lost, everything nested, and the same answers when it is read again."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from package_root import PACKAGE_ROOT

from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.lines import lines
from profiling_lab.export.perfetto import microseconds, write_perfetto
from profiling_lab.trace import Trace

RECORDED = PACKAGE_ROOT / "profiling_lab" / "exercises" / "e17_python_backtrace" / "recorded"
Event = dict[str, Any]

# Both are in use among viewers: cutting what is behind the third digit, and rounding.
READERS: tuple[Callable[[float], int], ...] = (lambda us: int(us * 1000.0), lambda us: round(us * 1000.0))


def export(builder: TraceBuilder, folder: Path) -> tuple[Event, list[Event]]:
    source, out = folder / "t.sqlite", folder / "t.json"
    source.unlink(missing_ok=True)
    with Trace.open(builder.write(source)) as trace:
        write_perfetto(trace, out)
    root = json.loads(out.read_text())
    return root, root.pop("traceEvents")


def slices(events: list[Event]) -> list[Event]:
    return [event for event in events if event["ph"] == "X"]


def check_nesting(events: list[Event], to_ns: Callable[[float], int]) -> None:
    """What a viewer demands: on a track every slice lies inside of what is open when it begins."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in slices(events):
        start = to_ns(event["ts"])
        tracks[event["pid"], event["tid"]].append((start, start + to_ns(event["dur"])))
    for track in tracks.values():
        open_ends: list[int] = []
        for start, end in sorted(track, key=lambda s: (s[0], -s[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


def training() -> TraceBuilder:
    builder = TraceBuilder().row("ThreadNames", nameId=1, globalTid=TraceBuilder().tid(2))
    assert builder.string("pt_autograd_0") == 1
    builder.copy("HtoD", 40, source=0, target=2, stack="/app/train.py:8 main", size_bytes=64)
    builder.launch("gemm<float>", 1000, stack="/app/train.py:9 main > /app/model.py:4 Net.forward", peek=1)
    builder.launch("gemm_t", 2001, node=0, node_name="MmBackward0", thread=2, peek=0)
    builder.memset(5, memory=2)
    builder.launch("early", 7, recorded=False)
    return builder.range("step", 1_000_000, 1_012_345).range("open", 1_013_000, None)


def test_tracks_names_arguments_and_arrows(tmp_path: Path) -> None:
    root, events = export(training(), tmp_path)
    assert root["baseTimeNanoseconds"] == 1_000_000 and root["traceName"] == "t.sqlite"
    names = {
        (e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"].endswith("_name")
    }
    assert set(names.values()) == {"process 100", "thread 100", "pt_autograd_0 101", "GPU 0", "stream 7"}
    by_name = {event["name"]: event for event in slices(events)}
    kernel = by_name["gemm<float>"]
    assert kernel["args"] == {
        "correlation": 2,
        "device": 0,
        "stream": 7,
        "phase": "forward",
        "line": "/app/model.py:4",
        "function": "Net.forward",
        "stack": ["/app/model.py:4 Net.forward", "/app/train.py:9 main"],
    }
    assert (by_name["gemm_t"]["args"]["line"], by_name["gemm_t"]["args"]["phase"]) == (
        "/app/model.py:4",
        "backward",
    )
    assert "before the recording began" in by_name["early"]["args"]["no line"]
    assert by_name["Memcpy HtoD (Pageable -> Device)"]["args"]["bytes"] == 64
    assert by_name["Memset (Device)"]["cat"] == "gpu_memset"
    assert (by_name["step"]["ts"], by_name["step"]["dur"]) == (0, 12.3451)
    assert "had not ended" in by_name["open"]["args"]["open"]
    arrows = [event for event in events if event["ph"] in "sf"]
    assert len(arrows) == 2 * 4, "what `early` was launched by is not known"
    (end,) = (event for event in arrows if event["ph"] == "f" and event["ts"] == kernel["ts"])
    assert (end["bp"], end["pid"], end["tid"]) == ("e", kernel["pid"], kernel["tid"])
    (begin,) = (event for event in arrows if event["ph"] == "s" and event["id"] == end["id"])
    (call,) = (
        e for e in slices(events) if e.get("args", {}).get("correlation") == 2 and e["cat"] == "cuda_runtime"
    )
    assert (begin["ts"], begin["tid"], begin["pid"]) == (call["ts"], call["tid"], call["pid"])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["demo_h200.sqlite", "nsys_h200.sqlite"])
def test_read_again_it_says_the_same(tmp_path: Path, name: str, packed: bool) -> None:
    out = tmp_path / "again.json"
    with Trace.open(RECORDED / name) as trace:
        write_perfetto(trace, out, packed=packed)
        expected = [(row.name, row.total_ns, row.count, row.kind) for row in top_kernels(trace).rows]
        times = trace.operations
        content = gzip.decompress(out.read_bytes()) if packed else out.read_bytes()
        for to_ns in READERS:
            check_nesting(json.loads(content)["traceEvents"], to_ns)
        with Trace.open(out) as again:
            assert again.recorder == "torch.profiler" and not again.repairs
            found = [(row.name, row.total_ns, row.count, row.kind) for row in top_kernels(again).rows]
            assert sorted(again.operations.start_ns.tolist()) == sorted(times.start_ns.tolist())
            assert sorted(again.calls.end_ns.tolist()) == sorted(trace.calls.end_ns.tolist())
            assert (again.attribution.call >= 0).sum() == (trace.attribution.call >= 0).sum()
    assert found == expected


def test_numbers_of_autograd_survive(captures: Path, tmp_path: Path) -> None:
    """Backward is joined with forward in the exported file as it was in the capture."""
    out = tmp_path / "again.json"
    with Trace.open(captures / "autograd_nvtx_h200.sqlite") as trace:
        write_perfetto(trace, out)
        expected = {row.key: (row.forward_ns, row.backward_ns) for row in lines(trace, by="range").rows}
        with Trace.open(out) as again:
            found = {row.key: (row.forward_ns, row.backward_ns) for row in lines(again, by="range").rows}
    assert found == expected


def test_lines_of_torch_profiler_survive(captures: Path, tmp_path: Path) -> None:
    out = tmp_path / "again.json.gz"
    with Trace.open(captures / "resnet50_num_workers_0.pt.trace.json.gz") as trace:
        write_perfetto(trace, out, packed=True)
        expected = lines(trace, own=("torchvision",))
        with Trace.open(out) as again:
            found = lines(again, own=("torchvision",))
    assert found.rows == expected.rows and len(found.rows) == 17
    assert found.coverage.unattributed == expected.coverage.unattributed


def test_ids_of_two_processes_stay_separate(captures: Path, tmp_path: Path) -> None:
    out = tmp_path / "again.json"
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        write_perfetto(trace, out)
        launched = int((trace.attribution.call >= 0).sum())
        expected = [(row.name, row.total_ns, row.count) for row in top_kernels(trace).rows]
    events = json.loads(out.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert (
        sum(name.startswith("GPU 0 of process") or name.startswith("GPU 1 of process") for name in names) == 2
    )
    check_nesting(events, READERS[0])
    with Trace.open(out) as again:
        assert int((again.attribution.call >= 0).sum()) == launched
        assert [(row.name, row.total_ns, row.count) for row in top_kernels(again).rows] == expected


ranges = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000), st.integers(1, 2)), max_size=25)
operations = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(0, 2000), st.integers(7, 8)), min_size=1, max_size=20
)


@settings(suppress_health_check=list(HealthCheck), max_examples=60)
@given(ranges, operations)
@example([(0, 10, 1), (5, 10, 1), (10, 0, 1), (10, 5, 1), (0, 10, 1)], [(0, 5, 7), (0, 5, 7), (4, 2, 7)])
def test_whatever_overlaps_nests_and_none_is_lost(
    tmp_path: Path, around: list[tuple[int, int, int]], gpu: list[tuple[int, int, int]]
) -> None:
    builder = TraceBuilder()
    for i, (start, length, thread) in enumerate(around):
        builder.range(f"r{i}", 1_000_000 + start, 1_000_000 + start + length, thread=thread)
    for i, (start, length, stream) in enumerate(gpu):
        builder.launch(f"k{i}", length, stream=stream, start_ns=1_000_000 + start)
    root, events = export(builder, tmp_path)
    for to_ns in READERS:
        check_nesting(events, to_ns)
        found = {
            event["name"]: (to_ns(event["ts"]) + root["baseTimeNanoseconds"] - 1_000_000, to_ns(event["dur"]))
            for event in slices(events)
            if event["name"][0] in "rk"
        }
        expected = {f"r{i}": (start, length) for i, (start, length, _) in enumerate(around)}
        expected |= {f"k{i}": (start, length) for i, (start, length, _) in enumerate(gpu)}
        assert found == expected


@given(st.integers(0, 10**14))
def test_times_are_exact_for_those_who_cut_and_those_who_round(ns: int) -> None:
    assert [to_ns(float(microseconds(ns))) for to_ns in READERS] == [ns, ns]


def test_impossible_times_do_not_blur_the_others(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("k", 1001, start_ns=2_000_000)
    builder.range("far", -(2**62), 2**62).range("late", 2**62, 2**62 + 5)
    root, events = export(builder, tmp_path)
    (kernel,) = (event for event in slices(events) if event["name"] == "k")
    for to_ns in READERS:
        check_nesting(events, to_ns)
        assert to_ns(kernel["ts"]) + root["baseTimeNanoseconds"] == 2_000_000 and to_ns(kernel["dur"]) == 1001
    assert {"far", "late"} <= {event["name"] for event in slices(events)}


def test_what_nests_needs_no_second_lane(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("k", 100)
    for depth in range(5):
        builder.range("r", 1_000_000 + depth, 1_001_000 - depth)
    _, events = export(builder, tmp_path)
    assert not [e for e in events if e["ph"] == "M" and "overlapping" in str(e["args"].get("name"))]
    _, events = export(builder.range("across", 1_000_500, 1_002_000), tmp_path)
    assert [
        e["args"]["name"] for e in events if e["ph"] == "M" and "overlapping" in str(e["args"].get("name"))
    ] == ["thread 100 (overlapping 1)"]


def test_a_trace_of_kernels_alone(tmp_path: Path) -> None:
    """No call was recorded, so there is no thread and no arrow. A damaged file has odd devices."""
    builder = (
        TraceBuilder().launch("a", 5, recorded=False).launch("b", 7, recorded=False, device=-3, stream=-1)
    )
    builder.launch("c", 9, recorded=False, pid=200).copy("DtoH", 3, recorded=False, source=99)
    root, events = export(builder, tmp_path)
    assert {event["ph"] for event in events} == {"M", "X"}
    found = {e["name"]: (e["args"]["device"], e["args"]["stream"], e["dur"]) for e in slices(events)}
    assert found == {
        "a": (0, 7, 0.0051),
        "b": (-3, -1, 0.0071),
        "c": (0, 7, 0.0091),
        "Memcpy DtoH (Unknown -> Unknown)": (0, 7, 0.0031),
    }
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"GPU 0 of process 100", "GPU -3 of process 100", "GPU 0 of process 200"}
    assert len({e["pid"] for e in slices(events)}) == 3 and root["baseTimeNanoseconds"] > 0
