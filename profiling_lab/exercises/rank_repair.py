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
from pathlib import Path
from types import ModuleType
from typing import Any

from profiling_lab.exercises.child_process import ChildError, answer_of
from profiling_lab.exercises.exercise import GradedCheck, Need, failed, not_checked, passed
from profiling_lab.exercises.program_repair import TRAININGS, Goal, judged, load

RANKS = 2
ROUNDS = 3
PATIENCE_S = 60.0
FOUND = "found"
MOVED_FRAC = 0.1
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
        wrong = answer_of("rank_repair", "compare", str(starter), str(repaired), str(goal.rounding), what=subject)
        if wrong:
            reason = "the speed does not matter while the result differs"
            return [failed(result, wrong), not_checked(speed, reason)]
        found = passed(result, f"{RANKS} processes: results, parameters and gradients agree with FP64")
        if missing := Need.TWO_GPUS.missing():
            return [found, not_checked(speed, f"{missing}, and a time on the CPU says nothing about GPUs")]
        raced = answer_of("rank_repair", "race", str(starter), str(repaired), str(goal.steps), what=subject)
    except ChildError as error:
        return [failed(result, f"{repaired.name}: {error}")]
    if raced["wrong"]:
        return [failed(result, raced["wrong"])]
    ratios = [old / new for old, new in raced["times"]]
    check = judged(ratios, raced["times"], goal)
    return [found, GradedCheck(speed, check.status, check.message)]


def child(what: str, starter: str, repaired: str, number: str) -> None:
    """In a process of its own: writes what rank 0 has found as its last line."""
    seeds = [secrets.randbelow(2**31) for _ in range(ROUNDS)]

    def of_rank(rank: int) -> Any:
        programs = load(Path(starter), "starter_program"), load(Path(repaired), "repaired_program")
        if what == "compare":
            return difference(*programs, seeds[0], float(number))
        return race(*programs, seeds, int(number), f"cuda:{rank}")

    print(json.dumps(in_ranks(of_rank, "gloo" if what == "compare" else "nccl")))


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
                os._exit(_status(rank, lambda rank=rank: as_rank(rank, folder), folder))
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
    distributed.all_gather_object(everywhere, _differs(exact, old, new, rounding))
    return next((f"on rank {rank} {text}" for rank, text in enumerate(everywhere) if text), "")


def _differs(exact: dict[str, Any], old: dict[str, Any], new: dict[str, Any], rounding: float) -> str:
    if exact.keys() != new.keys():
        name = sorted(exact.keys() ^ new.keys())[0]
        return f"{name} is missing or new: the program must train as before"
    for name, exactly in exact.items():
        if new[name].shape != exactly.shape:
            return f"{name} has {new[name].numel()} values, expected {exactly.numel()}"
        distance = _largest(new[name] - exactly)
        bound = 4 * _largest(old[name] - exactly) + 16 * rounding * _largest(exactly)
        if not distance <= bound:  # written so that NaN fails
            return f"{name} differs by {distance:.1e}; rounding explains up to {bound:.1e}"
    return ""


def outcome(program: ModuleType, seed: int, dtype: Any) -> dict[str, Any]:
    """The results of training a small job on this rank."""
    import torch

    job = program.build("cpu", small=True, seed=seed, dtype=dtype)
    printed = [_numbers(program.train(job, steps)) for steps in TRAININGS]
    found = {"the return value of train": torch.tensor(sum(printed, []), dtype=torch.float64)}
    for name, parameter in named_parameters(job):
        found[f"the parameter {name} after training"] = whole(parameter.detach()).double()
        if parameter.grad is not None:
            found[f"the gradient of {name}"] = whole(parameter.grad).double()
    return found


def _numbers(returned: Any) -> list[float]:
    """Of any nest of lists."""
    if isinstance(returned, (list, tuple)):
        return sum(map(_numbers, returned), [])
    return [float(returned)]


def named_parameters(job: Any) -> list[tuple[str, Any]]:
    """By the names that they have without DistributedDataParallel."""
    return [(name.removeprefix("module."), each) for name, each in job.model.named_parameters()]


def whole(tensor: Any) -> Any:
    """All of a tensor that FSDP2 has divided among the ranks."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _largest(tensor: Any) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def race(before: ModuleType, after: ModuleType, seeds: list[int], steps: int, device: str) -> dict[str, Any]:
    """Train full-size jobs of both programs alternately, with new data each time: seconds of rank 0 for each,
    and what differs on any rank.
    """
    from torch import distributed

    times, wrong = [], ""
    for turn, seed in enumerate(seeds):
        took, ended = [0.0, 0.0], [{}, {}]  # type: tuple[list[float], list[dict[str, Any]]]
        for program, index in [(before, 0), (after, 1)][:: 1 if turn % 2 else -1]:
            took[index], began, ended[index] = _timed(program, seed, steps, device)
        times.append(took)
        everywhere: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(everywhere, _apart(began, *ended))
        wrong = wrong or next((f"on rank {r} {text}" for r, text in enumerate(everywhere) if text), "")
    return {"times": times, "wrong": wrong}


def _timed(program: ModuleType, seed: int, steps: int, device: str) -> tuple[float, Any, Any]:
    """The seconds, and the parameters before and after."""
    import torch
    from torch import distributed

    on_gpu = device.startswith("cuda")
    job = program.build(device.partition(":")[0], small=not on_gpu, seed=seed, dtype=torch.float32)
    began = _parameters(job)
    program.train(job, 2)  # warm up: allocations and autotuning
    distributed.barrier()
    if on_gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    program.train(job, steps)
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - begin, began, _parameters(job)


def _parameters(job: Any) -> dict[str, Any]:
    return {name: whole(parameter.detach()).float().clone() for name, parameter in named_parameters(job)}


def _apart(began: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> str:
    """What differs at full size, where sums are of low precision: as a part of what training has changed."""
    for name, before in began.items():
        if name not in new:
            return f"{name} is missing"
        way = float((old[name] - before).norm())
        if not float((new[name] - old[name]).norm()) <= MOVED_FRAC * max(way, 1e-6):
            return f"at full size the parameter {name} is another one after training"
    return ""

