# SPDX-License-Identifier: Apache-2.0
"""Grade E32's repaired train.py: as the other training programs, and in bfloat16, too.

At full size the program computes in bfloat16, where a repair may call another kernel than in float32.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import torch

from profiling_lab.exercises import program_repair
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck, failed, not_checked
from profiling_lab.exercises.program_repair import Goal, load, outcome

BF16 = 2.0**-8
LATER = "the speed does not matter while the result differs"


def checks(starter: Path, repaired: Path, goal: Goal) -> list[GradedCheck]:
    """The checks "result" and "speed"."""
    found = program_repair.checks(starter, repaired, goal)
    if found[0].status is not CheckStatus.PASSED:
        return found
    try:
        wrong = difference(starter, repaired)
    except (Exception, SystemExit) as error:  # a learner's code may raise anything
        wrong = f"{repaired.name} raises {type(error).__name__} in bfloat16: {error}"
    return [failed("result", wrong), not_checked("speed", LATER)] if wrong else found


def difference(starter: Path, repaired: Path) -> str:
    """The first result in bfloat16 that is further from double precision than the starter's; or empty."""
    before, after = load(starter, "starter_program"), load(repaired, "repaired_program")
    device, seed = "cuda" if torch.cuda.is_available() else "cpu", secrets.randbelow(2**31)
    exact = outcome(before, "cpu", seed, torch.float64)
    old, new = (outcome(program, device, seed, torch.bfloat16) for program in (before, after))
    for name, right in exact.items():
        if name not in new or new[name].shape != right.shape:
            return f"in bfloat16 {name} is missing, or has another shape"
        distance = float((new[name] - right).abs().max())
        bound = 3 * float((old[name] - right).abs().max()) + BF16 * float(right.abs().max())
        if not distance <= bound:  # written so that NaN fails
            return f"in bfloat16 {name} differs by {distance:.1e}; rounding explains up to {bound:.1e}"
    return ""
