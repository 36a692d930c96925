# SPDX-License-Identifier: Apache-2.0
"""Grade a repaired program of several ranks: same results, parameters and gradients as the original on every
rank, and faster.

As program_repair, on two ranks: processes on the CPU joined by gloo, or GPUs joined by NCCL where there are
two. The program keeps `build(device, small, seed, dtype)`, which makes a job with a `model`, and
`train(job, steps)`, whose return value on rank 0 is what it prints. A program whose ranks wait for each other
in vain is ended.
"""

from __future__ import annotations

import math
import secrets
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling_lab.errors import LabError
from profiling_lab.exercises.exercise import GradedCheck, Need, failed, not_checked, passed
from profiling_lab.exercises.program_repair import FP32, TF32, load
from profiling_lab.measure import local_ranks

Outcome = dict[str, Any]
"""tensors by what they are"""
LIMIT_S = 240.0
RANKS, MOST_RANKS = 2, 4
ROUNDS = 7
TRAININGS = (2, 1, 3)
"""steps of each call of train on one small job"""
SLOWER_ALONE_FRAC = 1.1
"""how much longer the repaired program may take on one GPU: what is slow there scales well"""
PRINTED_FRAC = 4 * TF32
"""by how much a printed number may differ at full size"""


@dataclass(frozen=True, slots=True)
class RankGoal:
    """The requirements for a repair."""

    faster: float
    """the least speedup on several GPUs"""
    steps: int
    """the steps of one timed call of train"""
    efficiency_frac: float = 0.0
    """the least efficiency of strong scaling, relative to the repaired program on one GPU"""


def checks(starter: Path, repaired: Path, goal: RankGoal) -> list[GradedCheck]:
    """The checks "result" and "speed"."""
    if not repaired.is_file():
        return [failed("result", f"there is no {repaired.name} in this folder")]
    if repaired.read_bytes() == starter.read_bytes():
        return [failed("result", f"{repaired.name} is unchanged: nothing is repaired yet")]
    missing = Need.TWO_GPUS.missing()
    asked = {"starter": str(starter), "repaired": str(repaired), "seed": secrets.randbelow(2**31)}
    try:
        if wrong := _wrong(starter, repaired, asked, "cpu" if missing else "cuda"):
            reason = "the speed does not matter while the result differs"
            return [failed("result", wrong), not_checked("speed", reason)]
        result = passed(
            "result", f"results, parameters and gradients of {RANKS} ranks agree with double precision"
        )
        if missing:
            reason = f"{missing}, and a time on the CPU says nothing about GPUs"
            return [result, not_checked("speed", reason)]
        return _raced(asked, goal, result)
    except LabError as error:
        return [failed("result", f"{repaired.name}: {error}")]


def _wrong(starter: Path, repaired: Path, asked: dict[str, Any], device: str) -> str:
    """The first difference on any rank; "" if there is none. The same two files are compared once."""
    key = (starter.read_bytes(), repaired.read_bytes(), device)
    if key not in _compared:
        said = local_ranks.run(f"{__name__}:difference", asked, RANKS, device=device, limit_s=LIMIT_S)
        _compared[key] = said[0]
    return _compared[key]


_compared: dict[tuple[bytes, bytes, str], str] = {}


def difference(asked: dict[str, Any]) -> str:
    """The first difference of the repaired program's outcome on any rank; empty if rounding explains it."""
    import torch
    import torch.distributed as dist

    device = "cuda" if torch.cuda.is_available() else "cpu"
    before, after = (load(Path(asked[name]), f"{name}_program") for name in ("starter", "repaired"))
    for seed in (asked["seed"], asked["seed"] + 1):
        exact = _outcome(before, device, seed, torch.float64)
        old, new = (_outcome(program, device, seed, torch.float32) for program in (before, after))
        said: list[Any] = [None] * dist.get_world_size()
        # A rank that stopped here alone would leave the others waiting for it.
        dist.all_gather_object(said, _first_difference(exact, old, new, TF32 if device == "cuda" else FP32))
        if wrong := next(filter(None, said), ""):
            return str(wrong)
    return ""


def _first_difference(exact: Outcome, old: Outcome, new: Outcome, rounding: float) -> str:
    if exact.keys() != new.keys():
        name = sorted(exact.keys() ^ new.keys())[0]
        return f"{name} is missing or new: the program must train as before"
    for name, exactly in exact.items():
        if new[name].shape != exactly.shape:
            return f"{name} has {new[name].numel()} values, expected {exactly.numel()}"
        scale = float(exactly.abs().max()) if exactly.numel() else 0.0
        off, usual = (float((each[name] - exactly).abs().max()) if scale else 0.0 for each in (new, old))
        bound = 4 * usual + 16 * rounding * scale
        if not off <= bound:  # written so that NaN fails
            return f"{name} differs by {off:.1e}; rounding explains up to {bound:.1e}"
    return ""


def _outcome(program: Any, device: str, seed: int, dtype: Any) -> Outcome:
    """What this rank has after each training of a small job; what is printed counts on rank 0 alone."""
    import torch
    import torch.distributed as dist

    job = program.build(device, small=True, seed=seed, dtype=dtype)
    found = {}
    for turn, steps in enumerate(TRAININGS, 1):
        printed = [float(each) for each in program.train(job, steps)]
        if dist.get_rank() == 0:
            found[f"the return value of train {turn}"] = torch.tensor(printed, dtype=torch.float64)
        for name, parameter in job.model.named_parameters():
            found[f"the parameter {name} after train {turn}"] = parameter.detach().double().cpu().clone()
            if parameter.grad is not None:
                found[f"the gradient of {name} after train {turn}"] = parameter.grad.double().cpu().clone()
    return found


def race(asked: dict[str, Any]) -> dict[str, Any]:
    """On each rank: train full-size jobs of both programs in turns. Returns the seconds of each call, the
    slowest rank's, and what both printed.
    """
    import time

    import torch
    import torch.distributed as dist

    programs = [load(Path(asked[name]), f"{name}_program") for name in ("starter", "repaired")]
    jobs = [program.build("cuda", seed=asked["seed"]) for program in programs]
    seconds: list[list[float]] = [[], []]
    printed: list[list[float]] = [[], []]
    for turn in range(-1, ROUNDS):  # the first connects the ranks and grows memory
        for which in (0, 1) if turn % 2 else (1, 0):
            torch.cuda.synchronize()
            dist.barrier()
            begin = time.perf_counter()
            said = programs[which].train(jobs[which], asked["steps"])
            torch.cuda.synchronize()
            took = torch.tensor(time.perf_counter() - begin, device="cuda")
            dist.all_reduce(took, dist.ReduceOp.MAX)
            printed[which] += [float(each) for each in said] if dist.get_rank() == 0 else []
            if turn >= 0:
                seconds[which].append(took.item())
    return {"seconds": seconds, "printed": printed}


def _raced(asked: dict[str, Any], goal: RankGoal, result: GradedCheck) -> list[GradedCheck]:
    ranks = max(n for n in (2, MOST_RANKS) if n <= local_ranks.gpus())
    asked |= {"steps": goal.steps}
    found = {
        n: local_ranks.run(f"{__name__}:race", asked, n, limit_s=LIMIT_S)[0]
        for n in ((1, ranks) if goal.efficiency_frac else (ranks,))
    }
    for race_ in found.values():
        if wrong := _printed_otherwise(*race_["printed"]):
            return [failed("result", wrong)]
    times = {n: [statistics.median(each) / goal.steps for each in found[n]["seconds"]] for n in found}
    ratios = [old / new for old, new in zip(*found[ranks]["seconds"], strict=True)]
    return [result, judged(ranks, statistics.median(ratios), times, goal)]


def _printed_otherwise(old: list[float], new: list[float]) -> str:
    """How the printed numbers of full-size jobs differ; empty if they do not."""
    if len(old) != len(new):
        return f"at full size train returns {len(new)} values, not {len(old)}"
    for before, after in zip(old, new, strict=True):
        if not math.isclose(before, after, rel_tol=PRINTED_FRAC, abs_tol=PRINTED_FRAC):
            return f"at full size train returns {after:g}, expected {before:g}"
    return ""


def judged(ranks: int, gain: float, times_s: dict[int, list[float]], goal: RankGoal) -> GradedCheck:
    """times_s: of a step of the original and of the repaired program, by the number of GPUs."""
    old_ms, new_ms = (1e3 * each for each in times_s[ranks])
    said = f"{old_ms:.2f} ms per step before, {new_ms:.2f} ms after, on {ranks} GPUs: {gain:.2f} times"
    if goal.efficiency_frac:
        old_alone, new_alone = times_s[1]
        efficiency = 1e3 * new_alone / (ranks * new_ms)
        said += f", efficiency {100 * efficiency:.0f} %"
        if new_alone > SLOWER_ALONE_FRAC * old_alone:
            slower = f"{1e3 * new_alone:.2f} ms on one GPU, {1e3 * old_alone:.2f} ms before"
            return failed("speed", f"{slower}: a program that is slow on one GPU is no gain")
        if efficiency < goal.efficiency_frac:
            return failed("speed", f"{said}; the goal is {100 * goal.efficiency_frac:g} %")
    if gain < goal.faster:
        return failed("speed", f"{said}; the goal is {goal.faster:g} times")
    return passed("speed", said)
