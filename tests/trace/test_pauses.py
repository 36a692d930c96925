# SPDX-License-Identifier: Apache-2.0
"""Recordings of windows with pauses between: nothing is known of a pause, so it is no idle time."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.analysis.coverage import coverage
from profiling_lab.analysis.gaps.gaps import gaps
from profiling_lab.analysis.overlap import overlap
from profiling_lab.analysis.steps import steps
from profiling_lab.rules.view import View
from profiling_lab.trace import Trace
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.window import WindowSelection

US = 1000
OPTIMIZER = "/app/train.py:9 main > /lib/python3.11/site-packages/torch/optim/adamw.py:200 AdamW.step"


def record(first_steps: tuple[int | None, ...] = (10, 20), last_end: bool = True) -> TraceBuilder:
    """Two windows of two steps, 5 ms apart. Each step: 100 us of work, 150 us of pause of the GPU."""
    builder = TraceBuilder()
    for number, first_step in enumerate(first_steps):
        start = builder.now_ns
        for i in range(2):
            builder.launch(f"gemm{number}{i}", 90 * US, stack="/app/train.py:7 main").gap(240 * US)
            builder.launch("adam", 10 * US, stack=OPTIMIZER)
        end = builder.now_ns if last_end or number + 1 < len(first_steps) else None
        builder.row("PYREC_WINDOW", start=start, end=end, firstStep=first_step)
        builder.gap(5000 * US)
    return builder


@pytest.fixture(params=[True, False], ids=["closed", "killed"])
def paused(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return record(last_end=request.param).write(tmp_path / "run.sqlite")


def test_a_pause_is_no_idle_time(paused: Path) -> None:
    with Trace.open(paused) as trace:
        result, side = gaps(trace), overlap(trace)
        idle = sum(row.idle_ns for row in result.rows)
        assert idle == result.idle_ns == result.parts_ns[3] < 2000 * US
        assert result.span_ns == result.idle_ns + int(trace.operations.duration_ns.sum())
        (device,) = side.devices
        assert sum(device.level_ns) == device.span_ns == result.span_ns
        covered = coverage(trace, trace.stacks.own_rows(Ownership()))
        assert covered.span_ns == result.span_ns
        assert covered.notes == ("the recording paused once: nothing is known of that time, it is not idle",)
        # What was between the two windows is 5 ms of nothing.
        first, last = trace.operations.start_ns.min(), trace.operations.end_ns.max()
        assert int(last - first) - result.span_ns > 4900 * US


def test_a_window_that_begins_with_a_step_begins_a_step(paused: Path) -> None:
    with Trace.open(paused) as trace:
        found = steps(trace)
        assert (found.sign, found.steps) == ("optimizer", 4)
        assert [row.compute_ns for row in found.rows] == [100 * US] * 4
        assert all(row.wall_ns < 600 * US for row in found.rows), "none lasts over the pause"
        assert gaps(trace.windowed(WindowSelection(step="2"))).steps == 1


def test_one_window_of_one_step(tmp_path: Path) -> None:
    builder = TraceBuilder()
    start = builder.now_ns
    builder.launch("gemm", 90 * US, stack="/app/train.py:7 main").launch("adam", 10 * US, stack=OPTIMIZER)
    path = builder.row("PYREC_WINDOW", start=start, end=None, firstStep=10).write(tmp_path / "run.sqlite")
    with Trace.open(path) as trace:
        found = steps(trace)
        assert (found.sign, found.steps, found.rows[0].compute_ns) == ("optimizer", 1, 100 * US)


def test_windows_by_the_clock_begin_anywhere(tmp_path: Path) -> None:
    path = record(first_steps=(None, None)).write(tmp_path / "run.sqlite")
    with Trace.open(path) as trace:
        found = steps(trace)
        assert (found.sign, found.steps) == ("optimizer", 2), "the first step of each window is not whole"


def test_a_window_of_the_trace_over_a_pause(paused: Path) -> None:
    with Trace.open(paused) as trace:
        part = trace.windowed(WindowSelection(range="300us:5500us"))
        whole, inside = gaps(trace), gaps(part)
        assert 0 < inside.idle_ns < whole.idle_ns and inside.span_ns < 2000 * US
        assert sum(row.idle_ns for row in inside.rows) == inside.idle_ns


def test_work_in_a_pause_is_work(tmp_path: Path) -> None:
    """What the window launched last may run on for a while."""
    builder = record()
    end = builder.rows["PYREC_WINDOW"][0]["end"]
    builder.launch("late", 400 * US, start_ns=end + 100 * US)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        result = gaps(trace)
        assert result.span_ns == result.idle_ns + int(trace.operations.duration_ns.sum())


def test_a_recording_of_one_window_has_no_pause(tmp_path: Path) -> None:
    path = record(first_steps=(5,)).write(tmp_path / "run.sqlite")
    with Trace.open(path) as trace:
        assert not len(trace.pauses.spans)
        first, last = trace.operations.start_ns.min(), trace.operations.end_ns.max()
        assert gaps(trace).span_ns == last - first and steps(trace).steps == 2


def test_the_rules_know_of_pauses(paused: Path) -> None:
    with Trace.open(paused) as trace:
        view = View(trace)
        (busy,) = view.processes.values()
        assert busy.idle_ns == gaps(trace).idle_ns and busy.span_ns == view.span_ns == gaps(trace).span_ns
        part = View(trace.windowed(WindowSelection(step=":")))
        (inside,) = part.processes.values()
        assert inside.span_ns == part.span_ns == gaps(part.trace).span_ns
        # Idle time at the edges of a step is no part of it to the rules: it is between no two operations.
        assert inside.idle_ns <= gaps(part.trace).idle_ns
