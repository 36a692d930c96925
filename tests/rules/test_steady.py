# SPDX-License-Identifier: Apache-2.0
"""Findings are about the steady steps: what lies before them is left out, and told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.rules import Finding, Rule, run
from profiling_lab.rules.steady import StartUp, steady_part
from profiling_lab.rules.view import View
from profiling_lab.trace import Trace
from profiling_lab.trace.window import WindowSelection

MS = 1_000_000
STEP = "/app/train.py:9 step"


@pytest.fixture
def part(tmp_path: Path) -> Iterator[Callable[[TraceBuilder], tuple[Trace, StartUp | None]]]:
    opened: list[Trace] = []

    def look(builder: TraceBuilder) -> tuple[Trace, StartUp | None]:
        opened.append(Trace.open(builder.write(tmp_path / f"{len(opened)}.sqlite")))
        return steady_part(opened[-1], None)

    yield look
    for trace in opened:
        trace.close()


def steps(took_ms: list[float], builder: TraceBuilder | None = None) -> TraceBuilder:
    """Marked steps, each with one kernel that takes most of it."""
    builder = builder or TraceBuilder()
    for number, took in enumerate(took_ms):
        start_ns, took_ns = builder.now_ns, round(took * MS)
        builder.launch(f"k{number}", took_ns - 20_000, stack=STEP)
        builder.now_ns = start_ns + took_ns
        builder.range(f"ProfilerStep#{number}", start_ns, builder.now_ns)
    return builder


def kernels(trace: Trace) -> list[str]:
    names = trace.operations.names
    return [names[name] for name in trace.operations.name.tolist()]


def test_the_slow_first_steps_are_left_out(part: Callable) -> None:
    trace, start_up = part(steps([50, 9, 2, 1, 1, 1, 1, 1]))
    assert kernels(trace) == [f"k{number}" for number in range(3, 8)]
    assert start_up is not None and (start_up.first_step, start_up.steps) == (3, 8)
    assert start_up.before_ns == pytest.approx(61 * MS, rel=0.01)
    assert str(start_up).startswith("start-up: 61.0 ms before step 3 of 8 excluded; --whole")


def test_what_comes_before_the_first_step_is_left_out_too(part: Callable) -> None:
    builder = TraceBuilder().launch("load", 30_000).gap(7 * MS)
    trace, start_up = part(steps([1] * 8, builder))
    assert kernels(trace)[0] == "k1", "the first step found in a trace may be half of one"
    assert start_up is not None and start_up.before_ns == pytest.approx(8 * MS, rel=0.01)


def test_a_slow_step_later_on_is_no_start_up(part: Callable) -> None:
    trace, start_up = part(steps([1, 1, 1, 9, 1, 1, 1, 9]))
    assert kernels(trace) == [f"k{number}" for number in range(1, 8)] and start_up is not None


def test_never_more_than_half_of_the_steps_is_start_up(part: Callable) -> None:
    _, start_up = part(steps([9, 9, 9, 9, 9, 9, 1, 1, 1, 1]))
    assert start_up is not None and start_up.first_step <= 5


def test_a_few_steps_do_not_tell(part: Callable) -> None:
    trace, start_up = part(steps([2, 1, 1, 1]))
    assert start_up is None and len(trace.operations) == 4


def test_steps_of_a_warm_up_do_not_speak_for_the_rest(part: Callable) -> None:
    builder = steps([3, 1, 1, 1, 1, 1])
    builder.launch("the_work", 50 * MS, stack=STEP)
    trace, start_up = part(builder)
    assert start_up is None and "the_work" in kernels(trace) and "k0" in kernels(trace)


def test_uploads_before_the_steps_are_start_up(part: Callable) -> None:
    """A model that takes longer to upload than all steps that were recorded."""
    for kind in ("HtoD", "DtoD"):
        builder = TraceBuilder().copy(kind, 50 * MS, stack=STEP).gap(60 * MS)
        trace, start_up = part(steps([1] * 8, builder))
        assert ("k0" not in kernels(trace), start_up is not None) == (kind == "HtoD", kind == "HtoD")


def test_without_steps_the_work_after_the_last_long_pause_counts(part: Callable) -> None:
    builder = TraceBuilder().launch("load", MS).gap(150 * MS).launch("work", 5 * MS).launch("more", 4 * MS)
    trace, start_up = part(builder)
    assert kernels(trace) == ["work", "more"]
    assert start_up is not None and start_up.first_step is None and "last long pause" in str(start_up)
    early = TraceBuilder().launch("work", 9 * MS).gap(150 * MS).launch("end", MS)
    trace, start_up = part(early)
    assert start_up is None and kernels(trace) == ["work", "end"], "the work came before the pause"


def test_replays_of_a_graph_are_steps(part: Callable) -> None:
    builder = TraceBuilder().launch("warm_up", 2 * MS, stack=STEP).gap(20 * MS)
    for number in range(8):
        builder.operation(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            MS if number else 9 * MS,
            {"graphId": 1},
            api="cudaGraphLaunch_v10000",
            stack="/app/train.py:21 replay",
        ).gap(MS if number else 9 * MS)
    trace, start_up = part(builder)
    assert len(trace.operations) == 7 and start_up is not None
    assert (start_up.first_step, start_up.steps) == (1, 8)


def test_a_window_of_the_users_is_taken_as_it_is(tmp_path: Path) -> None:
    path = steps([50, 9, 2, 1, 1, 1, 1, 1]).write(tmp_path / "run.sqlite")
    with Trace.open(path) as trace:
        part = trace.windowed(WindowSelection(step="0:8"))
        same, start_up = steady_part(part, None)
        assert same is part and start_up is None


def test_rules_see_the_steady_steps_or_the_whole(tmp_path: Path) -> None:
    def check(view: View) -> list[Finding]:
        ns = int(view.operations.duration_ns.sum())
        return [Finding("all", ns, "GPU time", None, (), 0, "-")]

    rule = Rule("r", "?", (), check)
    with Trace.open(steps([50, 9, 2, 1, 1, 1, 1, 1]).write(tmp_path / "run.sqlite")) as trace:
        steady, whole = run(trace, [rule]), run(trace, [rule], whole=True)
    assert steady.start_up is not None and whole.start_up is None
    assert steady.findings[0].cost_ns == pytest.approx(5 * MS, rel=0.05)
    assert whole.findings[0].cost_ns == pytest.approx(66 * MS, rel=0.05)
    assert (steady.steps, whole.steps) == (5, 8)
