# SPDX-License-Identifier: Apache-2.0
"""Grade E26. The right answers are computed from the learner's own recording."""

from __future__ import annotations

from profiling_lab.exercises.clinic import KERNELS, Defect, exercise
from profiling_lab.exercises.program_repair import Goal
from profiling_lab.exercises.suspects import operations
from profiling_lab.rules.view import Mask, View

SMALL_NS = 10_000


def small(view: View) -> Mask:
    return view.kernels & (view.operations.duration_ns < SMALL_NS)


EXERCISE = exercise(
    "many-small-kernels",
    "Why is the GPU idle although nothing waits?",
    Defect(
        operations(small, effect="kernels", weigh="number"),
        planted=("GroupedScale.forward",),
        behind="kernel",
        size=KERNELS,
        least_frac=0.8,
        also_frac=0.3,
    ),
    Goal(faster=2.0, steps=10),
    rules=("tiny_kernels",),
)
