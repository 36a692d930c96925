# SPDX-License-Identifier: Apache-2.0
"""Grade E02. The right answers are computed from the learner's own recording."""

from __future__ import annotations

import numpy as np

from profiling_lab.exercises.clinic import SHARE, Defect, exercise
from profiling_lab.exercises.exercise import Mistake
from profiling_lab.exercises.program_repair import Goal
from profiling_lab.exercises.questions import After, TimelineNumber, alone_ms, blocks_of_hottest, busy_streams
from profiling_lab.exercises.suspects import operations
from profiling_lab.rules.view import Mask, View


def all_but_copies(view: View) -> Mask:
    return np.asarray(~view.copies)


def on_one_stream(view: View) -> Mask:
    """Everything, unless several streams ran at once: then the problem is gone."""
    return all_but_copies(view) if busy_streams(view.trace) < MOST_AT_ONCE else np.zeros_like(view.copies)


MOST_AT_ONCE = 1.3
EXERCISE = exercise(
    "kernel-overlap",
    "Which kernels could overlap, and why do they not?",
    Defect(operations(on_one_stream), planted=("Tower.forward",), behind="kernel", size=SHARE),
    Goal(faster=1.65, steps=8),
    rules=("dominant_line",),
    asked=(
        TimelineNumber(
            "blocks",
            "thread blocks of the kernel with the most GPU time (`profiling-lab kernels --occupancy`)",
            blocks_of_hottest,
        ),
        TimelineNumber(
            "at_once",
            "busy streams on average, while any was (first line of `profiling-lab streams`)",
            busy_streams,
            slack=0.06,
        ),
        TimelineNumber(
            "copies_alone_ms",
            "ms in which copies to the GPU ran and nothing else (`alone` in `profiling-lab overlap`)",
            alone_ms("copy HtoD"),
            slack_frac=0.05,
        ),
    ),
    after=(After("overlap", "busy streams on average, while any was", busy_streams, at_least=1.7),),
    more_mistakes=(
        Mistake("threads instead of blocks", {"timeline.blocks": 1024}, "blocks"),
        Mistake("the number of towers", {"timeline.at_once": 8.0}, "at_once"),
        Mistake("the time of everything", {"timeline.copies_alone_ms": 4321.0}, "copies_alone_ms"),
        Mistake(
            "the recording of the unchanged program as that of the repaired one",
            {"fix.after": "recorded/starter_h200.sqlite"},
            "overlap",
        ),
    ),
)
