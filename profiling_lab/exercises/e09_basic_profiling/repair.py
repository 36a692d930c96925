# SPDX-License-Identifier: Apache-2.0
"""Grade a repaired profile_training.py: the same results, and no operator that sorts all scores."""

from __future__ import annotations

import secrets
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiling_lab.exercises.exercise import GradedCheck, failed, not_checked, passed
from profiling_lab.exercises.outside_torch import Leaving
from profiling_lab.exercises.program_repair import load

SEVERAL_HITS = (64, 8, 12)  # rows, width, classes: the label is often among the best
WIDE = (8, 16, 1024)
STEPS = 3
SORTS = ("sort", "argsort", "msort", "kthvalue", "median", "nanmedian", "unique")
FEW_FRAC = 1 / 8  # topk of more than this part of a row is a sort by another name
MANY = 1024  # values that leave torch at once


class Operators(TorchDispatchMode):  # type: ignore[misc]
    """Notes the operators that sort, and how much."""

    def __init__(self) -> None:
        super().__init__()
        self.sorting: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        width = max(
            (each.shape[-1] for each in args if isinstance(each, torch.Tensor) and each.dim()), default=0
        )
        if name.startswith(SORTS) and width > 1:
            self.sorting.append(f"aten::{name} of {width} values")
        if name == "topk" and args[1] > FEW_FRAC * width:
            self.sorting.append(f"aten::topk of {args[1]} of {width} values")
        return func(*args, **(kwargs or {}))


def checks(starter: Path, repaired: Path) -> list[GradedCheck]:
    """The checks "result" and "work"."""
    if not repaired.is_file():
        return [failed("result", f"there is no {repaired.name} in this folder")]
    if repaired.read_bytes() == starter.read_bytes():
        return [failed("result", f"{repaired.name} is unchanged: nothing is repaired yet")]
    try:
        before, after = load(starter, "starter_program"), load(repaired, "repaired_program")
        for size in (SEVERAL_HITS, WIDE):
            seed = secrets.randbelow(2**31)
            if wrong := _difference(_trained(before, seed, size), _trained(after, seed, size)):
                reason = "the work does not matter while the result differs"
                return [failed("result", wrong), not_checked("work", reason)]
        with Operators() as operators, Leaving(MANY) as leaving:
            _trained(after, secrets.randbelow(2**31), WIDE)
    except (
        Exception,
        SystemExit,
    ) as error:  # a learner's code may raise anything, and the learner must see it
        return [failed("result", f"{repaired.name} raises {type(error).__name__}: {error}")]
    result = passed("result", "losses and hit rates agree, on new random data")
    if operators.sorting:
        return [result, failed("work", f"the program still runs {operators.sorting[0]}")]
    if leaving.left:
        return [
            result,
            failed("work", f"the values leave torch ({leaving.left[0]}): the work is done elsewhere"),
        ]
    return [result, passed("work", "no operator sorts all scores of a row")]


def _trained(program: ModuleType, seed: int, size: tuple[int, int, int]) -> list[tuple[float, float]]:
    return [(float(loss), float(rate)) for loss, rate in program.train(STEPS, seed=seed, size=size)]


def _difference(old: list[tuple[float, float]], new: list[tuple[float, float]]) -> str:
    if len(old) != len(new):
        return f"train returns {len(new)} results, expected {len(old)}"
    for step, (right, given) in enumerate(zip(old, new, strict=True)):
        for name, expected, found in zip(("loss", "hit rate"), right, given, strict=True):
            if not abs(found - expected) <= 1e-4 * max(abs(expected), 1.0):  # written so that NaN fails
                return f"the {name} of step {step} is {found:.5f}, expected {expected:.5f}"
    return ""
