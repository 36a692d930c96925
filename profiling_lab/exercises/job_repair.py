# SPDX-License-Identifier: Apache-2.0
"""Grade a repaired program of several ranks: the same results on every rank as the original, and faster.

As in program_repair, the learner keeps `build(device, small, seed, dtype)`, which makes a job with a `model`,
and `train(job, steps)`. Results are compared in processes joined by gloo on the CPU, at a small size; the
race needs a GPU for each rank. A program whose ranks wait for each other in vain is ended.
"""

from __future__ import annotations

import secrets
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from profiling_lab.errors import LabError
from profiling_lab.exercises.exercise import GradedCheck, Need, failed, not_checked, passed
from profiling_lab.exercises.program_repair import FP32, TRAININGS, differs, load
from profiling_lab.measure import local_ranks

LIMIT_S = 240.0
RANKS, MOST_RANKS = 2, 4
COMPARED, ROUNDS = 2, 5
"""new data for each comparison, and for each round of the race"""
RETURNED_FRAC = 2e-3
"""by how much what train returns may differ at full size"""
MOVED_FRAC = 0.25
"""of the way that parameters have gone in training, how far two full-size runs may be apart"""
SLOWER_ALONE_FRAC = 1.1
"""how much longer the repaired program may take on one GPU: what is slow there scales well"""


@dataclass(frozen=True, slots=True)
class JobGoal:
    """The requirements for a repair."""

    faster: float
    """the least speedup on several GPUs"""
    steps: int
    """the steps of one timed call of train"""
    efficiency_frac: float = 0.0
    """the least efficiency of strong scaling, relative to the repaired program on one GPU; 0: none"""
    every_rank_returns: bool = True
    """whether what train returns counts on every rank, or on rank 0 alone"""


def checks(starter: Path, repaired: Path, goal: JobGoal, name: str = "") -> list[GradedCheck]:
    """The checks "result" and "speed", with `name` in front of them."""
    result, speed = (f"{name} {check}".strip() for check in ("result", "speed"))
    if not repaired.is_file():
        return [failed(result, f"there is no {repaired.name} in this folder")]
    if repaired.read_bytes() == starter.read_bytes():
        return [failed(result, f"{repaired.name} is unchanged: nothing is repaired yet")]
    asked = {"starter": str(starter), "repaired": str(repaired), "every": goal.every_rank_returns}
    try:
        if wrong := _compared(starter, repaired, asked):
            reason = "the speed does not matter while the result differs"
            return [failed(result, wrong), not_checked(speed, reason)]
        agrees = passed(result, f"{RANKS} ranks: results, parameters and gradients agree with FP64")
        if missing := Need.TWO_GPUS.missing():
            return [agrees, not_checked(speed, f"{missing}, and a time on the CPU says nothing about GPUs")]
        raced = _raced(asked, goal)
    except LabError as error:
        return [failed(result, f"{repaired.name}: {error}")]
    if wrong := next((each["wrong"] for each in raced.values() if each["wrong"]), ""):
        return [failed(result, wrong)]
    check = judged({n: each["seconds"] for n, each in raced.items()}, goal)
    return [agrees, GradedCheck(speed, check.status, check.message)]


_found: dict[tuple[bytes, bytes], str] = {}


def _compared(starter: Path, repaired: Path, asked: dict[str, Any]) -> str:
    """The first difference on any rank, empty if there is none. The same two programs are compared once."""
    key = (starter.read_bytes(), repaired.read_bytes())
    if key not in _found:
        seeds = {"seeds": _seeds(COMPARED)}
        call = f"{__name__}:difference"
        _found[key] = local_ranks.run(call, asked | seeds, RANKS, device="cpu", limit_s=LIMIT_S)[0]
    return _found[key]


def _seeds(number: int) -> list[int]:
    return [secrets.randbelow(2**31) for _ in range(number)]


def _raced(asked: dict[str, Any], goal: JobGoal) -> dict[int, dict[str, Any]]:
    """What `race` gives, by the number of GPUs."""
    most = max(n for n in (RANKS, MOST_RANKS) if n <= local_ranks.gpus())
    asked |= {"seeds": _seeds(ROUNDS), "steps": goal.steps}
    counts = (1, most) if goal.efficiency_frac else (most,)
    return {n: local_ranks.run(f"{__name__}:race", asked, n, limit_s=LIMIT_S)[0] for n in counts}


# What each rank does.


def difference(asked: dict[str, Any]) -> str:
    """The first difference in the results on any rank; empty if they agree within rounding."""
    import torch

    before, after = _programs(asked)
    for seed in asked["seeds"]:
        exact = outcome(before, seed, torch.float64, asked["every"])
        old, new = (outcome(program, seed, torch.float32, asked["every"]) for program in (before, after))
        if wrong := _on_any_rank(differs(exact, old, new, FP32)):
            return wrong
    return ""


def _programs(asked: dict[str, Any]) -> tuple[ModuleType, ModuleType]:
    return load(Path(asked["starter"]), "starter_program"), load(Path(asked["repaired"]), "repaired_program")


def _on_any_rank(wrong: str) -> str:
    """A rank that stopped alone would leave the others waiting for it, so all of them are asked."""
    from torch import distributed

    everywhere: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everywhere, wrong)
    return next((f"on rank {rank} {text}" for rank, text in enumerate(everywhere) if text), "")


def outcome(program: ModuleType, seed: int, dtype: Any, every: bool = True) -> dict[str, Any]:
    """The results of training a small job on this rank."""
    import torch

    job = program.build("cpu", small=True, seed=seed, dtype=dtype)
    returned = [number for steps in TRAININGS for number in _counted(program.train(job, steps), every)]
    found = {"the return value of train": torch.tensor(returned, dtype=torch.float64)}
    for name, parameter in named_parameters(job):
        found[f"the parameter {name} after training"] = whole(parameter.detach()).double()
        if parameter.grad is not None:
            found[f"the gradient of {name}"] = whole(parameter.grad).double()
    return found


def _counted(returned: Any, every: bool) -> list[float]:
    from torch import distributed

    return _numbers(returned) if every or distributed.get_rank() == 0 else []


def _numbers(returned: Any) -> list[float]:
    """Of any nest of lists."""
    if isinstance(returned, (list, tuple)):
        return [number for each in returned for number in _numbers(each)]
    return [float(returned)]


def named_parameters(job: Any) -> list[tuple[str, Any]]:
    """By the names that they have without DistributedDataParallel."""
    return [(name.removeprefix("module."), each) for name, each in job.model.named_parameters()]


def whole(tensor: Any) -> Any:
    """All of a tensor that FSDP2 has divided among the ranks."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def race(asked: dict[str, Any]) -> dict[str, Any]:
    """Train full-size jobs of both programs alternately, with new data each time. Returns the seconds of each
    round, the slowest rank's, for both programs, and what differs on any rank.
    """
    programs, wrong = _programs(asked), ""
    seconds: list[list[float]] = [[], []]
    for turn, seed in enumerate(asked["seeds"]):
        runs = [_Run(program, asked["every"]) for program in programs]
        for run in runs if turn % 2 else runs[::-1]:
            run.train(seed, asked["steps"])
        for times, run in zip(seconds, runs, strict=True):
            times.append(run.seconds)
        wrong = wrong or _on_any_rank(_apart(*runs))
    return {"seconds": seconds, "wrong": wrong}


class _Run:
    """A full-size job of a program on this rank; a small one without a GPU."""

    def __init__(self, program: ModuleType, every: bool) -> None:
        self._program, self._every = program, every
        self.seconds = 0.0
        self.returned: list[float] = []
        self.began: dict[str, Any] = {}
        self.ended: dict[str, Any] = {}

    def train(self, seed: int, steps: int) -> None:
        import torch
        from torch import distributed

        on_gpu = distributed.get_backend() == "nccl"
        device, wait = ("cuda", torch.cuda.synchronize) if on_gpu else ("cpu", lambda: None)
        job = self._program.build(device, small=not on_gpu, seed=seed, dtype=torch.float32)
        self.began = _parameters(job)
        self._program.train(job, 2)  # warm up: allocations and autotuning
        distributed.barrier()
        wait()
        begin = time.perf_counter()
        returned = self._program.train(job, steps)
        wait()
        took = torch.tensor(time.perf_counter() - begin, device=device)
        distributed.all_reduce(took, distributed.ReduceOp.MAX)
        self.seconds = took.item()
        self.returned, self.ended = _counted(returned, self._every), _parameters(job)


def _parameters(job: Any) -> dict[str, Any]:
    return {name: whole(parameter.detach()).float().clone() for name, parameter in named_parameters(job)}


def _apart(old: _Run, new: _Run) -> str:
    """What differs at full size, where sums are of low precision: parameters as a part of what training has
    changed.
    """
    if len(old.returned) != len(new.returned):
        return f"train returns {len(new.returned)} values at full size, not {len(old.returned)}"
    for before, after in zip(old.returned, new.returned, strict=True):
        if not abs(after - before) <= RETURNED_FRAC * max(abs(before), 1.0):
            return f"train returns {after:g} at full size, expected {before:g}"
    for name, began in old.began.items():
        if name not in new.ended:
            return f"{name} is missing"
        way = float((old.ended[name] - began).norm())
        if not float((new.ended[name] - old.ended[name]).norm()) <= MOVED_FRAC * max(way, 1e-6):
            return f"the parameter {name} is another one after training at full size"
    return ""


def judged(seconds: dict[int, list[list[float]]], goal: JobGoal) -> GradedCheck:
    """The median of the rounds decides. seconds: by the number of GPUs, of each round of both programs."""
    ranks = max(seconds)
    gain = statistics.median(old / new for old, new in zip(*seconds[ranks], strict=True))
    times_ms = {
        n: [1e3 * statistics.median(each) / goal.steps for each in both] for n, both in seconds.items()
    }
    old_ms, new_ms = times_ms[ranks]
    said = f"{old_ms:.2f} ms per step before, {new_ms:.2f} ms after, on {ranks} GPUs: {gain:.2f} times"
    if goal.efficiency_frac:
        old_alone_ms, new_alone_ms = times_ms[1]
        efficiency = new_alone_ms / (ranks * new_ms)
        said += f", efficiency {100 * efficiency:.0f} %"
        if new_alone_ms > SLOWER_ALONE_FRAC * old_alone_ms:
            slower = f"{new_alone_ms:.2f} ms on one GPU, {old_alone_ms:.2f} ms before"
            return failed("speed", f"{slower}: a program that is slow on one GPU is no gain")
        if efficiency < goal.efficiency_frac:
            return failed("speed", f"{said}; the goal is {100 * goal.efficiency_frac:g} %")
    if gain < goal.faster:
        return failed("speed", f"{said}; the goal is {goal.faster:g} times")
    return passed("speed", said)
