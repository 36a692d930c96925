# SPDX-License-Identifier: Apache-2.0
"""Grade E29. The right answers are computed from the learner's own recording."""

from __future__ import annotations

from profiling_lab.exercises.clinic import SHARE, Defect, exercise
from profiling_lab.exercises.program_repair import Goal
from profiling_lab.exercises.suspects import operations
from profiling_lab.rules.kernel_families import REARRANGING
from profiling_lab.rules.view import Mask, View


def rearranging(view: View) -> Mask:
    return view.kernels_named(REARRANGING)


EXERCISE = exercise(
    "memory-layout",
    "Which line only moves memory around?",
    Defect(operations(rearranging), planted=("channel_norm",), behind="kernel", size=SHARE, also_frac=0.25),
    Goal(faster=1.3, steps=5),
    rules=("layout_copies",),
)
