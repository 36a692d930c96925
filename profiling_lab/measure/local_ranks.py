# SPDX-License-Identifier: Apache-2.0
"""Run a function on several ranks of this machine, one process each: on GPUs joined by NCCL, on the CPU by
gloo.

One process imports torch, and the ranks are forks of it. They meet over a file, so no port has to be free and
no name of a machine has to be known.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from profiling_lab.errors import LabError, UsageError

_START = "import sys; from profiling_lab.measure.local_ranks import start; start(sys.argv[1])"
_TASK, _PRINTED = "task.json", "printed.txt"


class RankError(LabError):
    """A rank failed, or did not end in time."""


def run(call: str, asked: Any, ranks: int, *, device: str = "cuda", limit_s: float = 300.0) -> list[Any]:
    """What `call` ("package.module:function") returns on each rank, by rank.

    It is called as function(asked) where the process group is there, RANK, WORLD_SIZE and LOCAL_RANK are set
    and, on GPUs, device LOCAL_RANK is current. `asked` and what it returns are made of JSON's types.

    Raises UsageError if there are fewer GPUs, RankError with the last line of the rank that failed.
    """
    if ranks < 1:
        raise UsageError(f"expected at least one rank, got {ranks}")
    if device == "cuda" and (there := gpus()) < ranks:
        raise UsageError(f"expected a GPU for each of {ranks} ranks, found {there}")
    with tempfile.TemporaryDirectory(prefix="profiling-lab-") as folder:
        task = {"call": call, "asked": asked, "ranks": ranks, "device": device, "limit_s": limit_s}
        Path(folder, _TASK).write_text(json.dumps(task), encoding="utf-8")
        status, printed = _ended(folder, limit_s)
        if status:
            said = [line for line in printed.splitlines() if line.strip()]
            raise RankError(f"a rank failed: {said[-1].strip() if said else f'status {status}'}")
        return [json.loads(_result(folder, rank).read_text(encoding="utf-8")) for rank in range(ranks)]


def launched() -> bool:
    """Whether this process is a rank that torchrun or another launcher started."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def in_this_job(function: Callable[[Any], Any], asked: Any, *, device: str = "cuda") -> Any:
    """What the function returns on this rank of a job that a launcher started; see `run`."""
    import torch
    import torch.distributed as dist

    own = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cuda":
        torch.cuda.set_device(own)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        device_id=torch.device("cuda", own) if device == "cuda" else None,
    )
    found = function(asked)
    dist.barrier()
    dist.destroy_process_group()
    return found


def gpus() -> int:
    """How many GPUs torch sees; NVML is asked, so that this process can still fork ones that use them."""
    import torch

    before = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    try:
        return int(torch.cuda.device_count())
    finally:
        if before is None:
            del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
        else:
            os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = before


def _ended(folder: str, limit_s: float) -> tuple[int, str]:
    """The exit code of the process that starts the ranks, and what all of them printed.

    It has a process group of its own, which ends as a whole. Raises RankError after the limit.
    """
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    text = Path(folder, _PRINTED)
    with text.open("wb") as printed:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, folder],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise RankError(f"the ranks had not ended after {limit_s:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return status, text.read_text(encoding="utf-8", errors="replace")


def _result(folder: str, rank: int) -> Path:
    return Path(folder, f"rank{rank}.json")


def start(folder: str) -> None:
    """Fork the ranks and wait for them; if one fails, the others are ended."""
    import torch.multiprocessing as processes

    ranks = json.loads(Path(folder, _TASK).read_text(encoding="utf-8"))["ranks"]
    processes.start_processes(_rank, args=(folder,), nprocs=ranks, start_method="fork")


def _rank(rank: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    task = json.loads(Path(folder, _TASK).read_text(encoding="utf-8"))
    ranks, on_gpu = task["ranks"], task["device"] == "cuda"
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"  # no rank fails while another one still connects to it
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(max(len(os.sched_getaffinity(0)) // ranks, 1))
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=task["limit_s"]),
        device_id=torch.device("cuda", rank) if on_gpu else None,
    )
    module, _, name = task["call"].partition(":")
    found = getattr(import_module(module), name)(task["asked"])
    _result(folder, rank).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()  # no rank leaves while another one still talks to it
    dist.destroy_process_group()
