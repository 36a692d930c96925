# SPDX-License-Identifier: Apache-2.0
"""Grade a repaired train.py: equal losses, activity, parameters and gradients, and a lower peak.

Results are compared in float64, so that what is kept in fewer digits is noticed. The peak is that of torch's
own memory events, which do not depend on how loaded the machine is; memory outside of them is refused.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from profiling_lab.exercises.exercise import GradedCheck, failed, not_checked, passed
from profiling_lab.exercises.outside_torch import Leaving
from profiling_lab.exercises.program_repair import load

AT_MOST_FRAC = 0.185
"""the peak after the repair, as a fraction of that before"""
STEPS = BATCHES = 8
SHAPES = ((3, 4, (8, 16, 2, 32)), (5, 2, (4, 8, 3, 16)))
"""steps, batches and sizes for the comparison of results"""
EQUAL_FRAC = 1e-7
MANY = 1024  # values at once


class Foreign(TorchDispatchMode):  # type: ignore[misc]
    """Notes tensors in memory that torch has not allocated: of numpy, of files, of buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in (*args, result):
            if (
                isinstance(each, torch.Tensor)
                and each.numel() >= MANY
                and not each.untyped_storage().resizable()
            ):
                self.found.append(func.overloadpacket.__name__)
        return result


def checks(starter: Path, repaired: Path) -> list[GradedCheck]:
    """The checks "result" and "peak"."""
    if not repaired.is_file():
        return _stopped(f"there is no {repaired.name} in this folder")
    if repaired.read_bytes() == starter.read_bytes():
        return _stopped(f"{repaired.name} is unchanged: nothing is repaired yet")
    try:
        before, after = load(starter, "starter_program"), load(repaired, "repaired_program")
        for steps, batches, size in SHAPES:
            seed = secrets.randbelow(2**31)
            old, new = (outcome(program, steps, batches, seed, size) for program in (before, after))
            if wrong := difference(old, new):
                return _stopped(wrong)
        result = passed("result", "losses, activity, parameters and gradients are equal, on new random data")
        if why := _elsewhere(before, after):
            return [result, failed("peak", why)]
        return [result, _peak(before, after)]
    except (
        Exception,
        SystemExit,
    ) as error:  # a learner's code may raise anything, and the learner must see it
        return _stopped(f"{repaired.name} raises {type(error).__name__}: {error}")


def _stopped(why: str) -> list[GradedCheck]:
    return [failed("result", why), not_checked("peak", "it does not matter while the result differs")]


@contextmanager
def _in_double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def outcome(program: ModuleType, steps: int, batches: int, seed: int, size: Any) -> dict[str, torch.Tensor]:
    """All that a program returns, in float64. Gradients may be gone afterwards: their memory is free then."""
    with _in_double():
        losses, evaluated, activity, model = program.train(steps, batches, seed=seed, size=size)
        found = {
            "the losses": torch.tensor([float(each) for each in losses]),
            "the evaluated loss": torch.tensor(float(evaluated)),
            "the activity": torch.as_tensor(activity).detach(),
        }
    for name, parameter in model.named_parameters():
        found[f"the parameter {name}"] = parameter.detach()
        if parameter.grad is not None:
            found[f"the gradient of {name}"] = parameter.grad
    return found


def difference(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor]) -> str:
    """The first difference, "" if there is none."""
    for name, right in old.items():
        given = new.get(name)
        if given is None:
            if name.startswith("the gradient"):
                continue
            return f"{name} is missing: train returns a model with the same parameters"
        if given.shape != right.shape:
            return f"{name} has the shape {tuple(given.shape)}, expected {tuple(right.shape)}"
        distance, scale = float((given.double() - right).abs().max()), float(right.abs().max())
        if not distance <= EQUAL_FRAC * max(scale, 1e-3):  # written so that NaN fails
            return f"{name} differ{'' if name.endswith('losses') else 's'} by {distance:.1e} in float64"
    return ""


def _elsewhere(before: ModuleType, after: ModuleType) -> str:
    """Why memory is used that the peak does not have; "" if there is none."""
    size = (before.ROWS, before.WIDTH, before.LAYERS, before.CLASSES)
    with Leaving(MANY) as leaving, Foreign() as foreign:
        after.train(2, 2, seed=secrets.randbelow(2**31), size=size)
    if leaving.left:
        return f"values leave torch ({leaving.left[0]}): memory elsewhere is still memory"
    if foreign.found:
        return f"a tensor of {foreign.found[0]} is in memory that torch has not allocated"
    return ""


def peak_bytes(program: ModuleType, steps: int, batches: int, seed: int, size: Any) -> int:
    """The most memory at once, by torch's memory events."""
    memory = load(Path(__file__).parent / "memory.py", "memory_of_the_exercise")
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            program.train(steps, batches, seed=seed, size=size)
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        most: int = memory.peak(memory.read(path)).bytes
    return most


def _peak(before: ModuleType, after: ModuleType) -> GradedCheck:
    size, seed = (before.ROWS, before.WIDTH, before.LAYERS, before.CLASSES), secrets.randbelow(2**31)
    old, new = (peak_bytes(program, STEPS, BATCHES, seed, size) for program in (before, after))
    said = f"{new / 1e6:.1f} MB with {STEPS} steps and {BATCHES} batches, {old / 1e6:.1f} MB before"
    if new <= AT_MOST_FRAC * old:
        return passed("peak", said)
    return failed(
        "peak", f"{said}; the goal is at most {100 * AT_MOST_FRAC:g} %: look at a trace of it again"
    )
