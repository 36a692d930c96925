# SPDX-License-Identifier: Apache-2.0
"""Grade E25. The right answers are computed from the learner's own recording."""

from __future__ import annotations

import numpy as np

from profiling_lab.exercises.clinic import SHARE, Defect, exercise
from profiling_lab.exercises.program_repair import Goal
from profiling_lab.exercises.suspects import operations
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import MemoryKind


def pageable(view: View) -> Mask:
    return np.asarray(view.copies & (view.operations.source_memory == MemoryKind.PAGEABLE))


EXERCISE = exercise(
    "host-to-device",
    "Why does the GPU wait for its data?",
    Defect(operations(pageable, names="memory"), planted=("train",), behind="memory", size=SHARE),
    Goal(faster=1.5, steps=8),
    rules=("pageable_copy",),
)
