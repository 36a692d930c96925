# SPDX-License-Identifier: Apache-2.0
"""Grade E27. The right answers are computed from the learner's own recording."""

from __future__ import annotations

from profiling_lab.exercises.clinic import SHARE, Defect, exercise
from profiling_lab.exercises.program_repair import Goal
from profiling_lab.exercises.suspects import operations
from profiling_lab.rules.view import Mask, View


def elementwise(view: View) -> Mask:
    return view.kernels_named(r"elementwise|reduce_kernel")


EXERCISE = exercise(
    "memory-bandwidth",
    "Why does so little arithmetic take so long?",
    Defect(operations(elementwise), planted=("norm_gelu",), behind="kernel", size=SHARE),
    Goal(faster=2.0, steps=5),
    rules=("memory_bound",),
)
