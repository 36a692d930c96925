# SPDX-License-Identifier: Apache-2.0
"""Grade E28. The right answers are computed from the learner's own recording."""

from __future__ import annotations

from profiling_lab.exercises.clinic import WAITS, Defect, exercise
from profiling_lab.exercises.program_repair import Goal
from profiling_lab.exercises.suspects import waits

EXERCISE = exercise(
    "hidden-synchronisation",
    "Where does the host wait for the GPU?",
    Defect(waits, planted=("hits",), behind="call", size=WAITS),
    Goal(faster=1.8, steps=10),
    rules=("implicit_sync",),
)
