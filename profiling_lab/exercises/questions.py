# SPDX-License-Identifier: Apache-2.0
"""Numbers that a learner reads from the timeline, recomputed from the learner's own recording; and what a
recording of the repaired program must show.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.analysis.copies import CopyRow, copies
from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.overlap.overlap import overlap
from profiling_lab.analysis.overlap.streams import streams
from profiling_lab.analysis.steps import steps
from profiling_lab.analysis.syncs import syncs
from profiling_lab.errors import LabError, NotEnoughDataError
from profiling_lab.exercises.answers import Answers, is_near
from profiling_lab.exercises.exercise import GradedCheck, failed, not_checked, passed
from profiling_lab.trace import Trace

Measure = Callable[[Trace], float]
SCALES = (1e-6, 1e-3, 1e-2, 1e2, 1e3, 1e6)
"""a percentage as a fraction, ns for us and the like: such answers get their own hint"""


@dataclass(frozen=True, slots=True)
class TimelineNumber:
    """One number. Its answer is `[timeline] key` in answer.toml, its check has the same name."""

    key: str
    what: str
    """where to read it, and in which unit"""
    measure: Measure
    slack: float = 0.0
    """accepted difference, in the unit of the answer"""
    slack_frac: float = 0.0
    """the same as a fraction of the true value"""

    @property
    def name(self) -> str:
        return f"timeline.{self.key}"

    def fits(self, given: float, truth: float) -> bool:
        return is_near(given, truth, self.slack, self.slack_frac)


@dataclass(frozen=True, slots=True)
class After:
    """What the timeline of the repaired program must show: `[fix] after` names its recording."""

    name: str
    """of the check"""
    what: str
    measure: Measure
    at_least: float | None = None
    at_most: float | None = None

    @property
    def goal(self) -> str:
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"

    def reached(self, value: float) -> bool:
        return value >= self.at_least if self.at_least is not None else value <= (self.at_most or 0.0)


def checks(questions: Sequence[TimelineNumber], path: Path | None, answers: Answers) -> list[GradedCheck]:
    """One check for each question; `path` is the recording, None where there is no usable one."""
    if path is None:
        return [not_checked(q.key, "there is no usable recording to check it against") for q in questions]
    try:
        with Trace.open(path) as trace:
            truths = [question.measure(trace) for question in questions]
    except LabError as error:
        return [failed(question.key, str(error)) for question in questions]
    return [_judged(q, answers.number(q.name), truth) for q, truth in zip(questions, truths, strict=True)]


def _judged(question: TimelineNumber, given: float | None, truth: float) -> GradedCheck:
    if given is None:
        return failed(question.key, f"not answered yet: [timeline] {question.key}: {question.what}")
    if question.fits(given, truth):
        return passed(question.key, f"{given:g}, recomputed {truth:.4g}")
    if any(question.fits(given * scale, truth) for scale in SCALES):
        return failed(question.key, f"that is another unit: {question.what}")
    return failed(question.key, f"this recording has another value: {question.what}")


def right_answers(questions: Sequence[TimelineNumber], path: Path) -> dict[str, object]:
    """The right answers for [timeline] in this recording."""
    with Trace.open(path) as trace:
        return {question.name: float(f"{question.measure(trace):.4g}") for question in questions}


def after_checks(
    goals: Sequence[After], workspace: Path, answers: Answers, starter: Path
) -> list[GradedCheck]:
    """One check for each goal. A recording of the unchanged program, ours or the learner's, shows nothing."""
    given = answers.text("fix.after")
    if given is None:
        reason = "no recording of the repaired program: [fix] after (the last step)"
        return [not_checked(goal.name, reason) for goal in goals]
    path = workspace / given
    try:
        if given == answers.text("trace") or path.read_bytes() == starter.read_bytes():
            why = "[fix] after names the recording of the unchanged program"
            return [failed(goal.name, why) for goal in goals[:1]]
        with Trace.open(path) as trace:
            values = [goal.measure(trace) for goal in goals]
    except (LabError, OSError) as error:
        return [failed(goal.name, str(error)) for goal in goals[:1]]
    return [_shown(goal, value) for goal, value in zip(goals, values, strict=True)]


def _shown(goal: After, value: float) -> GradedCheck:
    said = f"{goal.what}: {value:.1f}"
    if goal.reached(value):
        return passed(goal.name, said)
    return failed(goal.name, f"{said}; the goal is {goal.goal}")


def idle_of_step(trace: Trace) -> float:
    """Percentage of the median step in which the GPU did nothing."""
    rows = steps(trace).rows
    if not rows:
        raise NotEnoughDataError(f"{trace.path} has no step")
    return statistics.median(100 * row.idle_ns / max(row.wall_ns, 1) for row in rows)


def compute_of_step_ms(trace: Trace) -> float:
    """Time of the median step in which a kernel ran."""
    rows = steps(trace).rows
    if not rows:
        raise NotEnoughDataError(f"{trace.path} has no step")
    return statistics.median(row.compute_ns for row in rows) / 1e6


def waits_in(api: str) -> Measure:
    """How many waits of the host are in calls of this function."""
    return lambda trace: float(sum(row.stats.count for row in syncs(trace).rows if row.api == api))


def alone_ms(name: str) -> Measure:
    """The time in which operations of this class (CLASS_NAMES) ran, and nothing else."""
    return lambda trace: sum(row.alone_ns for row in overlap(trace).classes if row.name == name) / 1e6


def busy_streams(trace: Trace) -> float:
    """Busy streams on average, while any was: of the GPU with most streams."""
    return max(streams(trace).devices, key=lambda device: device.streams).concurrency


def blocks_of_hottest(trace: Trace) -> float:
    """Thread blocks of the kernel with the most GPU time; of its usual launch."""
    rows = [row for row in top_kernels(trace, shapes=True, lines=False).rows if row.kind == "kernel"]
    if not rows or rows[0].shape is None:
        raise NotEnoughDataError(f"{trace.path} has no kernel with its grid")
    return float(rows[0].shape.usual.blocks)


def copied_mib(direction: str) -> Measure:
    """What all copies of this direction ("memcpy DtoH") moved, in MiB."""
    return lambda trace: sum(row.sizes.total for row in _copies(trace, direction)) / (1 << 20)


def call_gb_s(direction: str) -> Measure:
    """What the copies of this direction moved, by the time in their calls, in GB/s: while a call copies
    pageable memory it blocks.
    """

    def measure(trace: Trace) -> float:
        found = [(row.sizes.total, row.calls_ns) for row in _copies(trace, direction) if row.calls_ns]
        if not found:
            raise NotEnoughDataError(f"{trace.path} has no {direction} with its call")
        return sum(size for size, _ in found) / sum(ns or 0 for _, ns in found)

    return measure


def pageable_ms(trace: Trace) -> float:
    """The time in the calls of copies from or to pageable memory."""
    rows = [row for row in copies(trace, by="memory").rows if row.pageable]
    if any(row.calls_ns is None for row in rows):
        raise NotEnoughDataError(f"{trace.path} has copies of pageable memory without their calls")
    return sum(row.calls_ns or 0 for row in rows) / 1e6


def _copies(trace: Trace, direction: str) -> list[CopyRow]:
    return [row for row in copies(trace, by="direction").rows if row.direction == direction]
