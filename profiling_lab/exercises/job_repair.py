# SPDX-License-Identifier: Apache-2.0
"""Grade a repaired program of several processes: the same results on every rank as the original, and faster.

As in program_repair, the learner keeps `build(device, small, seed, dtype)` and `train(job, steps)`. Results
are compared in processes with gloo on the CPU, at a small size; the race needs a GPU for each.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from profiling_lab.exercises.child_process import ChildError, answer_of
from profiling_lab.exercises.exercise import GradedCheck, Need, failed, not_checked, passed
from profiling_lab.exercises.program_repair import TRAININGS, Goal, differs, judged, load

RANKS = 2
ROUNDS = 3
PATIENCE_S = 60.0
FOUND = "found"
RETURNED_FRAC = 2e-3
"""by how much what train returns may differ at full size"""
MOVED_FRAC = 0.25
"""of the way that parameters have gone in training, how far two full-size runs may be apart"""


def checks(starter: Path, repaired: Path, goal: Goal, name: str = "") -> list[GradedCheck]:
    """The checks "result" and "speed", with `name` in front of them."""
    result, speed = (f"{name} {check}".strip() for check in ("result", "speed"))
    if not repaired.is_file():
        return [failed(result, f"there is no {repaired.name} in this folder")]
    if repaired.read_bytes() == starter.read_bytes():
        return [failed(result, f"{repaired.name} is unchanged: nothing is repaired yet")]
    subject = f"{repaired.name} has"
    try:
        wrong = _compared(starter, repaired, goal.rounding, subject)
        if wrong:
            reason = "the speed does not matter while the result differs"
            return [failed(result, wrong), not_checked(speed, reason)]
        found = passed(result, f"{RANKS} processes: results, parameters and gradients agree with FP64")
        if missing := Need.TWO_GPUS.missing():
            return [found, not_checked(speed, f"{missing}, and a time on the CPU says nothing about GPUs")]
        raced = answer_of("job_repair", "race", str(starter), str(repaired), str(goal.steps), what=subject)
    except ChildError as error:
        return [failed(result, f"{repaired.name}: {error}")]
    if raced["wrong"]:
        return [failed(result, raced["wrong"])]
    ratios = [old / new for old, new in raced["times"]]
    check = judged(ratios, raced["times"], goal)
    return [found, GradedCheck(speed, check.status, check.message)]


_found: dict[tuple[bytes, bytes, float], str] = {}


def _compared(starter: Path, repaired: Path, rounding: float, subject: str) -> str:
    """The first difference on any rank, empty if there is none. The same two programs are compared once."""
    key = (starter.read_bytes(), repaired.read_bytes(), rounding)
    if key not in _found:
        paths = (str(starter), str(repaired))
        _found[key] = answer_of("job_repair", "compare", *paths, str(rounding), what=subject)
    return _found[key]


def child(what: str, starter: str, repaired: str, number: str) -> None:
    """In a process of its own: writes what rank 0 has found as its last line."""
    seeds = [secrets.randbelow(2**31) for _ in range(ROUNDS)]

    def of_rank(_: int) -> Any:
        programs = load(Path(starter), "starter_program"), load(Path(repaired), "repaired_program")
        if what == "compare":
            return difference(*programs, seeds[0], float(number))
        return race(*programs, seeds, int(number), "cuda")

    found = in_ranks(of_rank, "gloo" if what == "compare" else "nccl")
    sys.stdout.write(f"{json.dumps(found)}\n")


def in_ranks(
    work: Callable[[int], Any], backend: str, ranks: int = RANKS, patience_s: float = PATIENCE_S
) -> Any:
    """Run work(rank) in forks of this process, which are a process group; what it gives on rank 0.

    patience_s: how long a rank waits for the others in a collective.
    Raises SystemExit with the error of the rank that failed first.
    """
    import torch  # once for all of them
    from torch import distributed

    def as_rank(rank: int, folder: Path) -> None:
        torch.set_num_threads(1)
        os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)})
        if backend == "nccl":
            torch.cuda.set_device(rank)
        distributed.init_process_group(
            backend,
            store=distributed.FileStore(str(folder / "store"), ranks),
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=patience_s),
        )
        found = work(rank)
        if rank == 0:
            (folder / FOUND).write_text(json.dumps(found))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        children = []
        for rank in range(ranks):
            pid = os.fork()
            if not pid:
                os._exit(_status(rank, partial(as_rank, rank, folder), folder))
            children.append(pid)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        errors = sorted(folder.glob("error*"), key=lambda path: path.stat().st_mtime_ns)
        if errors:
            sys.exit(errors[0].read_text())
        for rank, status in enumerate(statuses):
            if status:
                sys.exit(f"rank {rank} ended with status {status}")
        return json.loads((folder / FOUND).read_text())


def _status(rank: int, run: Callable[[], None], folder: Path) -> int:
    """Of a rank: 1 and a file with its error, if it raises one."""
    try:
        run()
        return 0
    except BaseException as error:  # a learner's code may raise anything, and the learner must see it
        traceback.print_exc()
        said = f"rank {rank} raises {type(error).__name__}: {error}".splitlines()
        (folder / f"error{rank}").write_text(said[0])
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def difference(before: ModuleType, after: ModuleType, seed: int, rounding: float) -> str:
    """The first difference in the results on any rank; empty if they agree within rounding."""
    import torch
    from torch import distributed

    exact = outcome(before, seed, torch.float64)
    old, new = (outcome(program, seed, torch.float32) for program in (before, after))
    everywhere: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everywhere, differs(exact, old, new, rounding))
    return next((f"on rank {rank} {text}" for rank, text in enumerate(everywhere) if text), "")


def outcome(program: ModuleType, seed: int, dtype: Any) -> dict[str, Any]:
    """The results of training a small job on this rank."""
    import torch

    job = program.build("cpu", small=True, seed=seed, dtype=dtype)
    printed = [number for steps in TRAININGS for number in _numbers(program.train(job, steps))]
    found = {"the return value of train": torch.tensor(printed, dtype=torch.float64)}
    for name, parameter in named_parameters(job):
        found[f"the parameter {name} after training"] = whole(parameter.detach()).double()
        if parameter.grad is not None:
            found[f"the gradient of {name}"] = whole(parameter.grad).double()
    return found


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


def race(before: ModuleType, after: ModuleType, seeds: list[int], steps: int, device: str) -> dict[str, Any]:
    """Train full-size jobs of both programs alternately, with new data each time: seconds of rank 0 for each,
    and what differs on any rank.
    """
    from torch import distributed

    times, wrong = [], ""
    for turn, seed in enumerate(seeds):
        runs = [_Run(before), _Run(after)]
        for run in runs if turn % 2 else runs[::-1]:
            run.train(seed, steps, device)
        times.append([run.seconds for run in runs])
        everywhere: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(everywhere, _apart(*runs))
        wrong = wrong or next((f"on rank {r} {text}" for r, text in enumerate(everywhere) if text), "")
    return {"times": times, "wrong": wrong}


class _Run:
    """A full-size job of a program on this rank."""

    def __init__(self, program: ModuleType) -> None:
        self._program = program
        self.seconds = 0.0
        self.returned: list[float] = []
        self.began: dict[str, Any] = {}
        self.ended: dict[str, Any] = {}

    def train(self, seed: int, steps: int, device: str) -> None:
        import torch
        from torch import distributed

        on_gpu = device == "cuda"
        wait = torch.cuda.synchronize if on_gpu else lambda: None
        job = self._program.build(device, small=not on_gpu, seed=seed, dtype=torch.float32)
        self.began = _parameters(job)
        self._program.train(job, 2)  # warm up: allocations and autotuning
        distributed.barrier()
        wait()
        begin = time.perf_counter()
        returned = self._program.train(job, steps)
        wait()
        self.seconds = time.perf_counter() - begin
        self.returned, self.ended = _numbers(returned), _parameters(job)


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
