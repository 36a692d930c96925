# SPDX-License-Identifier: Apache-2.0
"""Grade a repaired train.py: same results, parameters and gradients as the original, and faster.

The program is tested through two functions that the learner keeps: `build(device, small, seed, dtype)` makes
a job with a `model`, `train(job, steps)` trains it and returns the numbers that it prints. The data come from
a new seed each time, and one job is trained several times, so hard-coded or cached results fail. The baseline
is the exercise's own program, not the learner's copy of it.
"""

from __future__ import annotations

import importlib.util
import secrets
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from profiling_lab.errors import UsageError
from profiling_lab.exercises.exercise import GradedCheck, Need, failed, not_checked, passed

ROUNDS = 5
TRAININGS = (2, 1, 1)  # steps of each call of train on one job
FP32 = 2.0**-23
TF32 = 2.0**-11


@dataclass(frozen=True, slots=True)
class Goal:
    """The requirements for a repair."""

    faster: float
    """the least speedup"""
    steps: int
    """the steps of one timed call of train"""
    rounding: float = FP32
    """the precision that the repair may use"""


def checks(starter: Path, repaired: Path, goal: Goal) -> list[GradedCheck]:
    """The checks "result" and "speed"."""
    if not repaired.is_file():
        return [failed("result", f"there is no {repaired.name} in this folder")]
    if repaired.read_bytes() == starter.read_bytes():
        return [failed("result", f"{repaired.name} is unchanged: nothing is repaired yet")]
    try:
        before, after = load(starter, "starter_program"), load(repaired, "repaired_program")
        wrong = difference(before, after, goal)
        if wrong:
            return [
                failed("result", wrong),
                not_checked("speed", "the speed does not matter while the result differs"),
            ]
        result = passed("result", "results, parameters and gradients agree with double precision")
        if missing := Need.GPU.missing():
            reason = f"{missing}, and a time on the CPU says nothing about the GPU"
            return [result, not_checked("speed", reason)]
        return [result, *race(before, after, goal)]
    except (
        Exception,
        SystemExit,
    ) as error:  # a learner's code may raise anything, and the learner must see it
        return [failed("result", f"{repaired.name} raises {type(error).__name__}: {error}")]


def load(path: Path, name: str) -> ModuleType:
    """Import a file under a unique module name, because two files called train.py are loaded."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def difference(before: ModuleType, after: ModuleType, goal: Goal) -> str:
    """The first difference in the results of the repaired program; empty if they agree within rounding."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for _ in range(2):
        seed = secrets.randbelow(2**31)
        exact = outcome(before, "cpu", seed, torch.float64)
        old, new = (outcome(program, device, seed, torch.float32) for program in (before, after))
        if wrong := differs(exact, old, new, goal.rounding):
            return wrong
    return ""


def differs(exact: dict[str, Any], old: dict[str, Any], new: dict[str, Any], rounding: float) -> str:
    """The first result of the repaired program that rounding does not explain; empty if there is none. exact:
    the original's in double precision, old: in the precision of `new`.
    """
    if exact.keys() != new.keys():
        return f"{sorted(exact.keys() ^ new.keys())[0]} is missing or new: the program must train as before"
    for name, exactly in exact.items():
        if new[name].shape != exactly.shape:
            return f"{name} has {new[name].numel()} values, expected {exactly.numel()}"
        distance = _largest(new[name] - exactly)
        bound = 4 * _largest(old[name] - exactly) + 16 * rounding * _largest(exactly)
        if not distance <= bound:  # written so that NaN fails
            return f"{name} differs by {distance:.1e}; rounding explains up to {bound:.1e}"
    return ""


def outcome(program: ModuleType, device: str, seed: int, dtype: Any) -> dict[str, Any]:
    """The results of training a small job: printed numbers, parameters and gradients, copied to the CPU."""
    import torch

    job = program.build(device, small=True, seed=seed, dtype=dtype)
    printed = [float(each) for steps in TRAININGS for each in program.train(job, steps)]
    found = {"the return value of train": torch.tensor(printed, dtype=torch.float64)}
    for name, parameter in job.model.named_parameters():
        found[f"the parameter {name} after training"] = parameter.detach().double().cpu()
        if parameter.grad is not None:
            found[f"the gradient of {name}"] = parameter.grad.double().cpu()
    return found


def _largest(tensor: Any) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def race(before: ModuleType, after: ModuleType, goal: Goal, device: str = "cuda") -> list[GradedCheck]:
    """Train full-size jobs of both programs alternately, each round with new data. The results must agree."""
    ratios, times = [], []
    for turn in range(ROUNDS):
        seed = secrets.randbelow(2**31)
        pair = [(before, 0), (after, 1)]
        took, printed = [0.0, 0.0], [[], []]  # type: tuple[list[float], list[list[float]]]
        for program, index in pair if turn % 2 else pair[::-1]:
            took[index], printed[index] = _timed(program, device, seed, goal.steps)
        if len(printed[0]) != len(printed[1]):
            return [
                failed(
                    "result", f"at full size train returns {len(printed[1])} values, not {len(printed[0])}"
                )
            ]
        for old, new in zip(*printed, strict=True):
            if not abs(new - old) <= max(2e-3, 16 * goal.rounding) * max(abs(old), 1.0):
                return [failed("result", f"at full size train returns {new:g}, expected {old:g}")]
        ratios.append(took[0] / took[1])
        times.append(took)
    return [judged(ratios, times, goal)]


def judged(ratios: list[float], times: list[list[float]], goal: Goal) -> GradedCheck:
    """The median of the rounds decides. Rounds are interleaved, so clocks and temperature affect both."""
    gain = statistics.median(ratios)
    old_ms, new_ms = (1e3 * statistics.median(each[i] for each in times) / goal.steps for i in (0, 1))
    said = f"{old_ms:.2f} ms per step before, {new_ms:.2f} ms after: {gain:.2f} times"
    if gain < goal.faster:
        return failed("speed", f"{said}; the goal is {goal.faster:g} times")
    return passed("speed", said)


def _timed(program: ModuleType, device: str, seed: int, steps: int) -> tuple[float, list[float]]:
    import torch

    on_gpu = device == "cuda"
    job = program.build(device, small=not on_gpu, seed=seed, dtype=torch.float32)
    program.train(job, 2)  # warm up: allocations and autotuning
    if on_gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    printed = [float(each) for each in program.train(job, steps)]
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - begin, printed
