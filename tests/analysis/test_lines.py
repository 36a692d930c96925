# SPDX-License-Identifier: Apache-2.0
"""Lines and kernels of synthetic traces whose truth is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import TraceBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiling_lab.analysis.coverage import NO_OWN_FRAME, Coverage
from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.lines import GROUPINGS, PHASES, LinesResult, lines
from profiling_lab.trace import Frame, Trace

PACKAGE = "/venv/lib/python3.12/site-packages/torch"
TORCH = f"{PACKAGE}/nn/modules"
CALLS_BACKWARD = f"/app/train.py:10 main > {PACKAGE}/_tensor.py:631 backward"
LINEAR = f"/app/train.py:9 main > /app/model.py:4 Net.forward > {TORCH}/linear.py:134 Linear.forward"
HEAD = f"/app/train.py:9 main > /app/model.py:7 Net.forward > {TORCH}/linear.py:134 Linear.forward"
OPTIMIZER = "/app/train.py:11 main > /venv/lib/python3.12/site-packages/torch/optim/adam.py:3 Adam.step"


def training_step() -> TraceBuilder:
    """Two layers forward and backward, the gradients added up, and an optimizer."""
    builder = TraceBuilder()
    builder.copy("HtoD", 40, stack="/app/train.py:8 main", peek=0)
    builder.launch("gemm", 1000, stack=LINEAR, peek=2)
    builder.launch("gemm", 3000, stack=HEAD, peek=4)
    builder.launch("gemm_t", 5000, node=3, node_name="AddmmBackward0", thread=2, peek=0)
    builder.launch("add", 10, node=-1, node_name="torch::autograd::AccumulateGrad", thread=2, peek=0)
    builder.launch("gemm_t", 2000, node=1, node_name="AddmmBackward0", thread=2, peek=0)
    builder.launch("adam", 500, stack=OPTIMIZER, peek=4)
    return builder


def ask(builder: TraceBuilder, tmp_path: Path, **how: object) -> LinesResult:
    path = tmp_path / "t.sqlite"
    path.unlink(missing_ok=True)
    with Trace.open(builder.write(path)) as trace:
        return lines(trace, **how)  # type: ignore[arg-type]


def times(result: LinesResult) -> dict[str, tuple[int, ...]]:
    """Forward and backward, and where there is any: recomputed, optimizer."""
    every = {r.key: (r.forward_ns, r.backward_ns, r.recompute_ns, r.optimizer_ns) for r in result.rows}
    return {key: ns if any(ns[2:]) else ns[:2] for key, ns in every.items()}


def test_backward_time_lands_on_the_forward_line(tmp_path: Path) -> None:
    result = ask(training_step(), tmp_path)
    assert times(result) == {
        "/app/model.py:7": (3000, 5010),  # with what adds its gradient up
        "/app/model.py:4": (1000, 2000),
        "/app/train.py:11": (0, 0, 0, 500),
        "/app/train.py:8": (40, 0),
    }
    first = result.rows[0]
    assert (first.function, first.file, first.line) == ("Net.forward", "/app/model.py", 7)
    assert (first.kernels, first.copies, first.gpu_ns) == (3, 0, 8010)
    assert first.share_frac == pytest.approx(8010 / 11550)
    assert result.rows[-1].copies == 1


def test_coverage_says_what_has_no_line_and_why(tmp_path: Path) -> None:
    builder = training_step()  # its last launch is not of backward: a gradient after it has no line
    builder.launch("add", 10, node=-1, node_name="torch::autograd::AccumulateGrad", thread=2, peek=0)
    coverage = ask(builder, tmp_path).coverage
    assert coverage.gpu_ns == 11560 and coverage.attributed_ns == 11550
    assert [(u.ns, u.kernels) for u in coverage.unattributed] == [(10, 1)]
    assert "AccumulateGrad" in coverage.unattributed[0].reason
    assert coverage.linked_ns == 7010 and coverage.inferred_ns == 10
    assert (coverage.operations, coverage.kernels, coverage.devices) == (8, 7, 1)
    assert coverage.notes == ()


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("function", {"/app/model.py:Net.forward": (4000, 7010), "/app/train.py:main": (40, 0, 0, 500)}),
        ("file", {"/app/model.py": (4000, 7010), "/app/train.py": (40, 0, 0, 500)}),
        ("module", {"/app/model.py:Net": (4000, 7010), "/app/train.py:main": (40, 0, 0, 500)}),
        (
            "kernel",
            {
                "gemm_t": (0, 7000),
                "gemm": (4000, 0),
                "adam": (0, 0, 0, 500),
                "memcpy HtoD": (40, 0),
                "add": (0, 10),
            },
        ),
    ],
)
def test_groupings(tmp_path: Path, by: str, expected: dict[str, tuple[int, ...]]) -> None:
    assert times(ask(training_step(), tmp_path, by=by)) == expected


def test_phases_select_and_shares_stay_of_everything(tmp_path: Path) -> None:
    result = ask(training_step(), tmp_path, phase="backward")
    assert times(result) == {"/app/model.py:7": (0, 5010), "/app/model.py:4": (0, 2000)}
    assert result.rows[0].share_frac == pytest.approx(5010 / 11550)
    assert result.coverage.gpu_ns == 11550


def test_limit_cuts_and_says_so(tmp_path: Path) -> None:
    result = ask(training_step(), tmp_path, limit=1)
    assert len(result.rows) == 1 and result.truncated and result.total_matched == 4


def test_depth_adds_the_callers(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for caller, ns in ((10, 100), (20, 200), (20, 50)):
        builder.launch("k", ns, stack=f"/app/train.py:{caller} main > /app/act.py:3 gelu")
    assert times(ask(builder, tmp_path)) == {"/app/act.py:3": (350, 0)}
    result = ask(builder, tmp_path, depth=2)
    assert times(result) == {
        "/app/act.py:3 < /app/train.py:20": (250, 0),
        "/app/act.py:3 < /app/train.py:10": (100, 0),
    }
    assert result.rows[0].callers == (Frame("main", "/app/train.py", 20),)


def test_own_decides_which_frame_is_the_line(tmp_path: Path) -> None:
    result = ask(training_step(), tmp_path, own=("train.py",))
    assert times(result) == {
        "/app/train.py:9": (4000, 7010),
        "/app/train.py:11": (0, 0, 0, 500),
        "/app/train.py:8": (40, 0),
    }
    nothing = ask(training_step(), tmp_path, own=("elsewhere",))
    assert nothing.rows == ()
    assert (NO_OWN_FRAME, 11550, 7) in nothing.coverage.unattributed


def test_the_first_gradient_belongs_to_the_line_that_calls_backward(tmp_path: Path) -> None:
    stack = f"{CALLS_BACKWARD} > {PACKAGE}/autograd/__init__.py:231 _make_grads"
    builder = TraceBuilder().launch("gemm", 10, stack=LINEAR, peek=1).launch("fill", 7, stack=stack, peek=2)
    builder.launch("gemm_t", 20, node=1, node_name="SelectBackward0", thread=2, peek=0)
    assert times(ask(builder, tmp_path)) == {"/app/model.py:4": (10, 20), "/app/train.py:10": (0, 7)}


def test_backward_on_a_user_thread_is_known_by_its_node(tmp_path: Path) -> None:
    """With one thread for everything, the stack of a backward launch ends at backward(): not the line."""
    stack = f"{CALLS_BACKWARD} > {PACKAGE}/autograd/graph.py:800 _engine_run_backward"
    builder = TraceBuilder().launch("gemm", 10, stack=LINEAR, peek=0).launch("gemm", 10, stack=LINEAR, peek=1)
    builder.launch("gemm_t", 20, stack=stack, node=0, node_name="MmBackward0", peek=1)
    builder.launch("old", 30, stack=stack, node=-1, node_name="torch::autograd::AccumulateGrad", peek=1)
    result = ask(builder, tmp_path)
    assert times(result) == {"/app/model.py:4": (20, 50)}, "the gradient that is added up is that node's"


def test_python_inside_of_a_hook_is_better_than_nothing(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 10, stack=LINEAR, peek=1)
    builder.launch("quantize", 30, stack="/app/hooks.py:5 compress", thread=2, node=-1, node_name="X", peek=0)
    assert times(ask(builder, tmp_path)) == {"/app/hooks.py:5": (0, 30), "/app/model.py:4": (10, 0)}


def test_a_hook_of_a_tensor_is_charged_to_its_own_line(tmp_path: Path) -> None:
    """It runs inside a node that has a forward line, on the engine's thread or on that of `backward()`."""
    builder = TraceBuilder().launch("x", 1, stack="/app/train.py:1 main", peek=0)
    builder.launch("gemm", 10, stack=LINEAR, peek=1)
    in_node = {"node": 0, "node_name": "MmBackward0", "peek": 1}
    hook = "/app/train.py:8 main.<locals>.<lambda> > /app/board.py:5 Board.add"
    builder.launch("count", 30, stack=hook, thread=2, **in_node)
    engine = f"/app/train.py:7 main > {PACKAGE}/autograd/graph.py:800 _engine_run_backward"
    builder.launch("count", 40, stack=f"{engine} > {hook}", **in_node)
    builder.launch("bwd", 20, thread=2, **in_node)
    assert times(ask(builder, tmp_path)) == {
        "/app/board.py:5": (0, 70),
        "/app/model.py:4": (10, 20),
        "/app/train.py:1": (1, 0),
    }


def test_a_custom_function_is_charged_to_its_forward(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("x", 1, stack="/app/train.py:1 main", peek=0)
    builder.launch("fwd", 10, stack="/app/train.py:5 main > /app/swish.py:3 Swish.forward", peek=1)
    builder.launch(
        "bwd", 20, stack="/app/swish.py:9 Swish.backward", thread=2, node=0, node_name="SwishBackward", peek=0
    )
    helper = f"{PACKAGE}/autograd/function.py:300 BackwardCFunction.apply > /app/swish.py:12 slope"
    builder.launch("bwd", 30, stack=helper, thread=2, node=0, node_name="SwishBackward", peek=0)
    assert times(ask(builder, tmp_path))["/app/swish.py:3"] == (10, 50)


def test_recomputed_layers_are_charged_to_their_own_line(tmp_path: Path) -> None:
    checkpoint = f"{PACKAGE}/utils/checkpoint.py"
    builder = TraceBuilder().launch("x", 1, stack="/app/train.py:1 main", peek=0)
    first = f"/app/train.py:5 main > {checkpoint}:400 checkpoint > /app/model.py:3 Block.forward"
    again = f"{checkpoint}:900 recompute_fn > /app/model.py:3 Block.forward"
    builder.launch("fwd", 10, stack=first, peek=1)
    builder.launch("fwd", 11, stack=again, thread=2, node=0, node_name="CheckpointFunctionBackward", peek=1)
    builder.launch("bwd", 20, thread=2, node=0, node_thread=2, node_name="MmBackward0", peek=1)
    assert times(ask(builder, tmp_path))["/app/model.py:3"] == (10, 20, 11, 0)


def test_what_the_recorder_lost_is_said(tmp_path: Path) -> None:
    builder = training_step()
    for name, value in {
        "dropped_calls": "3",
        "dropped_records": "4",
        "autograd_link": "torch is too old",
        "finished": "no",
    }.items():
        builder.row("PYREC_META", name=name, value=value)
    notes = ask(builder, tmp_path).coverage.notes
    assert "7 events were lost while recording" in notes
    assert "the autograd link: torch is too old" in notes
    assert "the recording was cut off before its end" in notes


def test_overlapping_operations_are_busy_once(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for stream, start in ((7, 10_000), (8, 10_500), (9, 30_000)):
        builder.launch("k", 1000, stack=LINEAR, stream=stream, start_ns=start)
    coverage = ask(builder, tmp_path).coverage
    assert (coverage.gpu_ns, coverage.busy_ns, coverage.span_ns) == (3000, 2500, 21_000)


def test_kernels_with_their_places(tmp_path: Path) -> None:
    with Trace.open(training_step().write(tmp_path / "t.sqlite")) as trace:
        result = top_kernels(trace, limit=2)
    gemm_t, gemm = result.rows
    assert result.truncated and result.total_matched == 5
    assert (gemm_t.short_name, gemm_t.kind, gemm_t.total_ns, gemm_t.count) == ("gemm_t", "kernel", 7000, 2)
    assert (gemm_t.average_ns, gemm_t.shortest_ns, gemm_t.longest_ns) == (3500, 2000, 5000)
    assert [(s.phase, s.gpu_ns, s.frames[0].line) for s in gemm_t.stacks] == [
        ("backward", 5000, 7),
        ("backward", 2000, 4),
    ]
    assert [str(f) for f in gemm.stacks[0].frames] == ["/app/model.py:7 Net.forward", "/app/train.py:9 main"]


launches = st.lists(
    st.tuples(
        st.sampled_from(["a.py:1 f", "a.py:1 f > b.py:2 g", "/x/site-packages/y.py:1 h", ""]),
        st.integers(0, 5000),
        st.one_of(st.none(), st.integers(-1, 6)),  # node
        st.one_of(st.none(), st.integers(0, 6)),  # peek
        st.booleans(),  # recorded
    ),
    min_size=1,
    max_size=12,
)


@settings(suppress_health_check=list(HealthCheck), max_examples=40)
@given(launches)
def test_not_a_nanosecond_is_lost(
    tmp_path: Path, rows: list[tuple[str, int, int | None, int | None, bool]]
) -> None:
    builder = TraceBuilder().launch("known", 1, stack="a.py:1 f")
    for stack, ns, node, peek, recorded in rows:
        where: dict[str, object] = {"stack": stack, "thread": 1 if node is None else 2}
        builder.launch("k", ns, node=node, peek=peek, recorded=recorded, **where)  # type: ignore[arg-type]
    total = 1 + sum(row[1] for row in rows)

    def check(coverage: Coverage) -> None:
        assert coverage.gpu_ns == total
        assert coverage.attributed_ns + sum(u.ns for u in coverage.unattributed) == total
        assert coverage.inferred_ns <= coverage.linked_ns <= coverage.attributed_ns

    path = tmp_path / "t.sqlite"
    path.unlink(missing_ok=True)
    with Trace.open(builder.write(path)) as trace:
        for by in GROUPINGS:
            if by in ("range", "layer", "instance"):
                continue
            result = lines(trace, by)
            check(result.coverage)
            expected = total if by == "kernel" else result.coverage.attributed_ns
            assert sum(row.gpu_ns for row in result.rows) == expected
            split = [lines(trace, by, phase) for phase in PHASES if phase != "all"]
            unknown = sum(row.unknown_ns for row in result.rows)
            assert unknown + sum(row.gpu_ns for part in split for row in part.rows) == expected
