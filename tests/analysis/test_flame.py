# SPDX-License-Identifier: Apache-2.0
"""The tree of calls, inclusive times and layers, against sums made one operation at a time."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder, parse_stack
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from package_root import PACKAGE_ROOT

from profiling_lab.analysis.flame import CallTree, call_tree, stack_times
from profiling_lab.analysis.lines import lines
from profiling_lab.analysis.lines_layers import FOLDED_NOTE, ONE_LINE_NOTE, OUTSIDE
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace import Trace
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import LINE_PHASES

RECORDED = PACKAGE_ROOT / "profiling_lab" / "exercises" / "e17_python_backtrace" / "recorded"
TORCH = "/v/site-packages/torch"
MODULE = f"{TORCH}/nn/modules/module.py"
CALL = f"{MODULE}:1779 Module._wrapped_call_impl > {MODULE}:1790 Module._call_impl"
FRAMES = ["/a.py:1 main", "/a.py:2 main", "/b.py:3 f", "/b.py:4 g", f"{TORCH}/x.py:5 h", "/c.py:6 C.forward"]

stacks = st.lists(st.sampled_from(FRAMES), max_size=6).map(" > ".join)
launches = st.lists(
    st.tuples(
        stacks,
        st.integers(0, 4000),
        st.sampled_from(["forward", "backward", "recompute", "optimizer", "unknown"]),
    ),
    min_size=1,
    max_size=14,
)


def build(rows: list[tuple[str, int, str]]) -> TraceBuilder:
    """One launch per row, each with its own node, so that the truth is the row itself."""
    builder = TraceBuilder().launch("first", 1, stack=FRAMES[0], peek=0)
    for i, (stack, ns, phase) in enumerate(rows):
        if phase == "backward":
            builder.launch("made", 0, stack=stack, peek=i + 1).launch("k", ns, node=i, thread=2, peek=0)
        elif phase == "recompute":
            again = f"{TORCH}/utils/checkpoint.py:9 unpack_hook" + (f" > {stack}" if stack else "")
            builder.launch("k", ns, stack=again, node=-1, thread=2, peek=i + 1)
        elif phase == "optimizer":
            step = f"{TORCH}/optim/sgd.py:7 step"
            builder.launch("k", ns, stack=f"{stack} > {step}" if stack else step, peek=i + 1)
        else:
            builder.launch("k", ns, stack=stack, peek=i + 1, recorded=phase != "unknown")
        if phase != "backward":  # the counter of a launch moves on by one
            builder.launch("made", 0, stack=FRAMES[0], peek=i + 1)
    return builder


def own(stack: str, phase: str) -> list[str]:
    """`file:line` of user frames, outermost first; none where the call was not recorded."""
    frames = parse_stack(stack) if phase != "unknown" else ()
    return [f"{file}:{line}" for _, file, line in frames if "site-packages" not in file]


def check_tree(tree: CallTree) -> None:
    """What every whole tree holds."""
    root, *rest = tree.nodes
    assert root.parent == -1 and root.inclusive_ns == sum(node.self_ns for node in tree.nodes)
    below: dict[int, int] = defaultdict(int)
    for i, node in enumerate(rest, 1):
        parent = tree.nodes[node.parent]
        assert node.parent < i and node.depth == parent.depth + 1 and node.key != parent.key
        below[node.parent] += node.inclusive_ns
    for i, node in enumerate(tree.nodes):
        assert node.inclusive_ns == node.self_ns + below[i]
    attributed = sum(node.self_ns for node in rest if node.frame)
    if tree.phase == "all":
        assert (root.inclusive_ns, attributed) == (tree.coverage.gpu_ns, tree.coverage.attributed_ns)


@settings(suppress_health_check=list(HealthCheck), max_examples=60)
@given(launches)
def test_sums_are_those_of_the_single_operations(tmp_path: Path, rows: list[tuple[str, int, str]]) -> None:
    path = tmp_path / "t.sqlite"
    path.unlink(missing_ok=True)
    rows = [("", ns, phase) if phase == "unknown" else (stack, ns, phase) for stack, ns, phase in rows]
    inclusive: dict[str, int] = defaultdict(int)
    alone: dict[tuple[str, str], int] = defaultdict(int)
    by_path: dict[str, int] = defaultdict(int)
    for stack, ns, phase in [(FRAMES[0], 1, "forward"), *rows]:
        frames = own(stack, phase)
        for place in set(frames):
            inclusive[place] += ns
        if frames:
            alone[frames[-1], phase] += ns
        for depth in range(len(frames) + 1):
            by_path[" > ".join(frames[:depth])] += ns
    with Trace.open(build(rows).write(path)) as trace:
        result = lines(trace, sort="inclusive")
        for row in result.rows:
            assert row.inclusive_ns == inclusive[row.key]
            for phase in LINE_PHASES:
                assert getattr(row, f"{phase}_ns") == alone[row.key, phase], (row.key, phase)
        missing = {key for key, ns in inclusive.items() if ns} - {row.key for row in result.rows}
        assert not missing
        assert sum(row.gpu_ns for row in result.rows) == result.coverage.attributed_ns
        tree = call_tree(trace)
        check_tree(tree)
        found = {node.key: node.inclusive_ns for node in tree.nodes if not node.reason}
        assert {key: ns for key, ns in found.items() if ns} == {key: ns for key, ns in by_path.items() if ns}
        assert tree.nodes[0].inclusive_phase_ns == result.phase_ns
        totals = [0] * len(LINE_PHASES)
        for phase in LINE_PHASES[:-1]:
            one = call_tree(trace, phase)  # type: ignore[arg-type]
            check_tree(one)
            totals[LINE_PHASES.index(phase)] = one.nodes[0].inclusive_ns
        assert totals[:-1] == list(tree.nodes[0].inclusive_phase_ns[:-1])
        own_row = trace.stacks.own_rows(Ownership())
        for form in ({}, {"all_frames": True}, {"by_kernel": True}):
            assert sum(time.ns for time in stack_times(trace, own_row, **form)) == result.coverage.gpu_ns


def three_levels(tmp_path: Path) -> Trace:
    builder = TraceBuilder().launch("k", 700, stack="/a.py:1 main > /b.py:2 f > /c.py:3 g", peek=1)
    builder.launch("k", 200, stack="/a.py:1 main > /b.py:4 f", peek=1).launch(
        "k", 60, stack="/a.py:1 main", peek=1
    )
    builder.launch("k", 40, peek=1)
    return Trace.open(builder.write(tmp_path / "t.sqlite"))


def test_what_is_cut_off_stays_in_the_time_above(tmp_path: Path) -> None:
    with three_levels(tmp_path) as trace:

        def shown(**how: Any) -> list[tuple[str, int]]:
            tree = call_tree(trace, **how)
            assert tree.truncated == (len(tree.nodes) < tree.total_nodes == 6)
            return [(node.key.rpartition(" > ")[2], node.inclusive_ns) for node in tree.nodes]

        whole = [("", 1000), ("/a.py:1", 960), ("/b.py:2", 700), ("/c.py:3", 700), ("/b.py:4", 200)]
        assert shown()[:5] == whole and "no Python stack" in shown()[5][0]
        assert shown(depth=2)[:4] == [*whole[:3], whole[4]]
        assert shown(min_share=0.3) == whole[:4]
        assert shown(limit=3) == whole[:3], "a parent comes before a child that costs as much"
        with pytest.raises(UsageError, match="phase must be one of"):
            call_tree(trace, "sideways")  # type: ignore[arg-type]


def test_without_stacks_the_tree_says_what_would_have_recorded_them(tmp_path: Path) -> None:
    with (
        Trace.open(TraceBuilder(form="nsys").launch("k", 1).write(tmp_path / "t.sqlite")) as trace,
        pytest.raises(NotEnoughDataError, match="holds no Python stacks"),
    ):
        call_tree(trace)


def test_recursion_counts_once(tmp_path: Path) -> None:
    deep = " > ".join(["/a.py:1 main", *["/b.py:2 again"] * 3])
    with Trace.open(TraceBuilder().launch("k", 10, stack=deep).write(tmp_path / "t.sqlite")) as trace:
        assert {row.key: row.inclusive_ns for row in lines(trace, sort="inclusive").rows} == {
            "/a.py:1": 10,
            "/b.py:2": 10,
        }


def test_layers_of_calls(tmp_path: Path) -> None:
    """The class and the line that called it: also of torch's own modules, and through a Sequential."""
    net = f"/a.py:9 main > {CALL} > /m.py:5 Net.forward"
    sequential = f"{CALL} > {TORCH}/nn/modules/container.py:250 Sequential.forward"
    builder = TraceBuilder().launch("x", 1, stack="/a.py:8 main", peek=0)
    for line, ns in ((5, 100), (6, 30)):
        stack = (
            net.replace("m.py:5", f"m.py:{line}")
            + f" > {CALL} > {TORCH}/nn/modules/linear.py:134 Linear.forward"
        )
        builder.launch("gemm", ns, stack=stack, peek=line)
    builder.launch(
        "gelu",
        7,
        stack=f"{net} > {sequential} > {CALL} > {TORCH}/nn/modules/activation.py:1 GELU.forward",
        peek=7,
    )
    builder.launch("own", 2, stack=net, peek=8).launch("gemm_t", 40, node=5, thread=2, peek=0)
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        result = lines(trace, by="layer", sort="inclusive")
        found = {row.key: (row.forward_ns, row.backward_ns, row.inclusive_ns) for row in result.rows}
        base = "Net@/a.py:9"
        assert found == {
            base: (2, 0, 179),
            f"{base} > Linear@/m.py:5": (100, 0, 100),
            f"{base} > Linear@/m.py:6": (30, 40, 70),
            f"{base} > Sequential@/m.py:5": (0, 0, 7),
            f"{base} > Sequential@/m.py:5 > GELU": (7, 0, 7),
            OUTSIDE: (1, 0, 1),
        }
        assert ONE_LINE_NOTE in result.coverage.notes


def test_instances_of_torch_profiler_are_folded_by_class(tmp_path: Path) -> None:
    """Two Linears that one line calls in a loop, in a block that is there twice."""

    def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": 9, "ts": ts, "dur": dur, "args": args}

    events = [event("python_function", "nn.Module: Net_0", 0, 1000)]
    events.append(event("python_function", "model.py(3): forward", 1, 998))
    for i, (block, linear) in enumerate([(0, 0), (0, 1), (1, 2), (0, 1)]):
        at = 10 + 100 * i
        events += [
            event("python_function", f"nn.Module: Block_{block}", at, 90),
            event("python_function", "model.py(30): forward", at + 1, 88),
            event("python_function", f"nn.Module: Linear_{linear}", at + 2, 80),
            event("python_function", "torch/nn/modules/linear.py(110): forward", at + 3, 70),
            event("cuda_runtime", "cudaLaunchKernel", at + 5, 1, correlation=i),
            event("kernel", "gemm", 2000 + i * 50, 10 + i, correlation=i, device=0, stream=7),
        ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    with Trace.open(path) as trace:
        result = lines(trace, by="layer", sort="inclusive")
        assert {row.key: (row.gpu_ns, row.inclusive_ns) for row in result.rows} == {
            "Net": (0, 46_000),
            "Net > Block": (0, 46_000),
            "Net > Block > Linear": (46_000, 46_000),
        }
        assert FOLDED_NOTE in result.coverage.notes and ONE_LINE_NOTE not in result.coverage.notes
        result = lines(trace, by="instance", sort="inclusive")
        assert {row.key: (row.gpu_ns, row.inclusive_ns) for row in result.rows} == {
            "Net_0": (0, 46_000),
            "Net_0 > Block_0": (0, 34_000),
            "Net_0 > Block_0 > Linear_0": (10_000, 10_000),
            "Net_0 > Block_0 > Linear_1": (24_000, 24_000),
            "Net_0 > Block_1": (0, 12_000),
            "Net_0 > Block_1 > Linear_2": (12_000, 12_000),
        }
        (row,) = lines(trace).rows
        assert (row.key, row.function) == ("model.py:30", "Block.forward"), "torch's frames are no own ones"


def test_layers_without_classes_and_without_modules(tmp_path: Path) -> None:
    plain = CALL.replace("Module.", "")
    stack = f"/a.py:9 main > {plain} > {TORCH}/nn/modules/linear.py:134 forward"
    with Trace.open(TraceBuilder("nsys").launch("k", 5, stack=stack).write(tmp_path / "t.sqlite")) as trace:
        (row,) = lines(trace, by="layer").rows
        assert (row.key, row.file, row.line) == ("linear.forward@/a.py:9", "/a.py", 9)
    with (
        Trace.open(TraceBuilder().launch("k", 5, stack="/a.py:9 main").write(tmp_path / "u.sqlite")) as trace,
        pytest.raises(NotEnoughDataError, match=r"no nn.Module that is called: try --by module"),
    ):
        lines(trace, by="layer")
    with (
        Trace.open(tmp_path / "u.sqlite") as trace,
        pytest.raises(NotEnoughDataError, match=r"notes no instances of nn.Module.*: try --by layer"),
    ):
        lines(trace, by="instance")


def test_the_demo_by_phase_call_and_layer() -> None:
    """The H200 recording of the first exercise: a planted slow layer in a transformer, four steps."""
    with Trace.open(RECORDED / "demo_h200.sqlite") as trace:
        result = lines(trace, by="layer")
        phases = dict(zip(LINE_PHASES, result.phase_ns, strict=True))
        assert phases == {
            "forward": 54_081_340,
            "backward": 31_366_517,
            "recompute": 0,
            "optimizer": 2_431_075,
            "unknown": 0,
        }
        slow, *rest = result.rows
        assert slow.key == "TransformerWithHeavyLayer@train_model.py:42 > HeavyLayer@model.py:111"
        assert slow.gpu_ns == 39_790_868
        around = {row.key.rpartition(" > ")[2]: row for row in rest}
        assert round(around["TransformerBlock@model.py:109"].inclusive_ns / 1e6, 1) == 32.9
        tree = call_tree(trace)
        check_tree(tree)
        (step,) = (node for node in tree.nodes if node.key.endswith("train_model.py:45"))
        assert step.inclusive_ns == phases["optimizer"] and step.frame is not None
        assert step.frame.function == "training_step", "the line that calls optimizer.step()"
    with Trace.open(RECORDED / "nsys_h200.sqlite") as trace:
        by_nsys = dict(zip(LINE_PHASES, lines(trace).phase_ns, strict=True))
        check_tree(call_tree(trace))
    for phase, ns in phases.items():
        assert by_nsys[phase] == pytest.approx(ns, rel=0.01), "nsys recorded another run of the same program"


def test_resnet_as_a_tree(captures: Path) -> None:
    path = captures / "resnet50_num_workers_0.pt.trace.json.gz"
    with Trace.open(path) as trace:
        tree = call_tree(trace, own=("torchvision", "resnet50_profiler_api.py"))
        check_tree(tree)
        assert tree.nodes[0].inclusive_ns == 603_558_000
        (model,) = (node for node in tree.nodes if node.key == "resnet50_profiler_api.py:46")
        assert [round(ns / 1e6, 1) for ns in model.inclusive_phase_ns[:2]] == [196.5, 370.8]
        optimizer = [
            ns / 1e6 for node in tree.nodes if node.depth == 1 for ns in [node.inclusive_phase_ns[3]]
        ]
        assert sum(optimizer) == pytest.approx(8.909, abs=0.001)
