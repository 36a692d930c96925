# SPDX-License-Identifier: Apache-2.0
"""Grade E01. The right answers are computed from the learner's own recording."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import IDLE, Defect, exercise
from profiling_lab.exercises.e01_timeline_basics import twin
from profiling_lab.exercises.exercise import GradedCheck, Mistake
from profiling_lab.exercises.program_repair import Goal
from profiling_lab.exercises.questions import (
    After,
    TimelineNumber,
    compute_of_step_ms,
    idle_of_step,
    waits_in,
)
from profiling_lab.exercises.suspects import Suspect, idle
from profiling_lab.trace import Trace

MOST_IDLE_PERCENT = 10


def much_idle(trace: Trace) -> list[Suspect]:
    """Where the GPU idles, unless it hardly does: then the problem is gone."""
    found = idle(trace)
    return found if found and idle_of_step(trace) > MOST_IDLE_PERCENT else []


_CLINIC = exercise(
    "timeline-basics",
    "Where on the timeline does the GPU do nothing, and what does the host do there?",
    Defect(much_idle, planted=("weight_sizes",), behind="cause", size=IDLE, least_frac=0.3),
    Goal(faster=2.8, steps=10),
    rules=("gap_cause", "sync_calls", "pageable_copy", "implicit_sync"),
    asked=(
        TimelineNumber(
            "idle", "idle of the median step in per cent (`profiling-lab steps`)", idle_of_step, slack=3.0
        ),
        TimelineNumber(
            "compute_ms",
            "ms in which a kernel runs, of the median step (`profiling-lab steps`)",
            compute_of_step_ms,
            slack_frac=0.1,
        ),
        TimelineNumber(
            "device_waits",
            "how often the host waits in cudaDeviceSynchronize (`profiling-lab syncs`, all rows of it)",
            waits_in("cudaDeviceSynchronize"),
        ),
    ),
    after=(
        After("gaps closed", "idle of the median step in per cent", idle_of_step, at_most=MOST_IDLE_PERCENT),
    ),
    more_mistakes=(
        Mistake("the wall of a step for its kernels", {"timeline.compute_ms": 987.0}, "compute_ms"),
        Mistake("idle of another recording", {"timeline.idle": 1.5}, "idle"),
        Mistake("a fraction for the idle time", {"timeline.idle": 0.015}, "idle"),
        Mistake("waits of one step", {"timeline.device_waits": 3}, "device_waits"),
        Mistake(
            "the recording of the unchanged program as that of the repaired one",
            {"fix.after": "recorded/starter_h200.sqlite"},
            "gaps closed",
        ),
    ),
)


def repair(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """train.py, and who wants to, the twin in CUDA C++ as well."""
    cuda = twin.checks(_CLINIC.folder / "baseline.cu", workspace / twin.NAME)
    return [*_CLINIC.repair(workspace, answers), *cuda]


EXERCISE = replace(_CLINIC, starter=(*_CLINIC.starter, "baseline.cu", twin.NAME, "Makefile"), repair=repair)
