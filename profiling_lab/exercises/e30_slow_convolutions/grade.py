# SPDX-License-Identifier: Apache-2.0
"""Grade E30. The right answers are computed from the learner's own recording."""

from __future__ import annotations

from profiling_lab.exercises.clinic import SHARE, Defect, exercise
from profiling_lab.exercises.program_repair import TF32, Goal
from profiling_lab.exercises.suspects import operations
from profiling_lab.rules.view import Mask, View


def unfolding(view: View) -> Mask:
    return view.kernels_named(r"(?i)im2col|col2im")


EXERCISE = exercise(
    "slow-convolutions",
    "Which kernels does this convolution launch?",
    Defect(operations(unfolding), planted=("Block.forward",), behind="kernel", size=SHARE),
    Goal(faster=2.0, steps=5, rounding=TF32),
    rules=(
        "tensor_cores",
        "dominant_line",
        "tiny_kernels",
        "slow_convolution",
        "layout_copies",
    ),
)
