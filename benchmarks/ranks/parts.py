# SPDX-License-Identifier: Apache-2.0
"""What run.py does with a case, in each process of the job: time it, record it, profile it."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist
from cases import Case
from shared.job import Job

WARM, SETTLE, ROUNDS = 4, 4, 4
"""steps before anything, steps after each change that are not timed, and how often each way is timed"""
RECORDED, PROFILED = 10, 4  # Holistic Trace Analysis leaves the first and the last one out
BLOCK_S, MOST_STEPS, LEAST_STEPS = 0.25, 10, 4
"""how long the steps of one timing take about, and how many there are"""
SAMPLE_HZ = 200
"""of `profiling-lab record`"""
Do = Callable[[Case], Any]
"""a case on this rank; what it returns can be written as JSON"""


def worker(part: str, out: Path) -> Do:
    """Join the job that the environment tells of."""
    if part == "recordings":
        return _recorder(out)
    job = Job()

    def do(case: Case) -> Any:
        try:
            return _times(job, case) if part == "times" else _profile(job, case, out)
        finally:
            job.end_program()
            job.barrier()

    return do


def _recorder(out: Path) -> Do:
    """Each recording has all of its job, from before the process group is made: NCCL tells who is in it."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*where, ranks, is_master=rank == 0)

    def do(case: Case) -> float:
        from profiling_lab import record

        folder = _folder(out, "recorded", case)
        (folder / "steps.txt").write_text(f"{WARM + RECORDED}\n")
        path = folder / f"run.rank{rank}.sqlite"
        options: dict[str, Any] = {"sample_hz": SAMPLE_HZ, "graph_nodes": case.graph_nodes}
        with record(path, overwrite=True, script=str(case.path), **options):
            step_ms = _trained(dist.PrefixStore(case.name, store), case)
        gc.collect()
        return step_ms

    return do


def _trained(store: dist.Store, case: Case) -> float:
    """Milliseconds of a step of a job that has this one program."""
    job = Job(store)
    step_ms = 1e3 * _timed(job, _step(job, case), RECORDED)
    job.end_program()
    job.leave()
    return step_ms


def _times(job: Job, case: Case) -> dict[str, list[float]]:
    """Milliseconds of a step in each way, as the slowest rank saw it."""
    step = _step(job, case)
    once_s = _timed(job, step, LEAST_STEPS)
    steps = max(LEAST_STEPS, min(MOST_STEPS, int(BLOCK_S / once_s)))
    samples: dict[str, list[float]] = {way: [] for way in case.ways}
    for turn in range(ROUNDS if len(case.ways) > 1 else 1):
        for way, mended in list(case.ways.items())[:: 1 if turn % 2 else -1]:
            job.mend(mended)
            for _ in range(SETTLE):
                step()
            samples[way].append(1e3 * _timed(job, step, steps))
    return samples


def _profile(job: Job, case: Case, out: Path) -> None:
    from torch.profiler import ProfilerActivity, profile, schedule

    step = _step(job, case)
    path = str(_folder(out, "profiled", case) / f"rank{job.rank}.json.gz")
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if job.on_gpu else [])],
        schedule=schedule(wait=0, warmup=1, active=PROFILED),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
    ) as profiler:
        for _ in range(1 + PROFILED):
            step()
            profiler.step()
        job.synchronize()


def _step(job: Job, case: Case) -> Callable[[], object]:
    """One that is warm."""
    step: Callable[[], object] = _program(case).build(job)
    for _ in range(WARM):
        step()
    job.barrier()
    return step


def _timed(job: Job, step: Callable[[], object], steps: int) -> float:
    """Seconds of a step, of the slowest rank."""
    job.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    job.synchronize()
    return job.longest(time.perf_counter() - began) / steps


def _program(case: Case) -> ModuleType:
    spec = importlib.util.spec_from_file_location(case.path.stem, case.path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[case.path.stem] = module  # where pickling looks for it
    spec.loader.exec_module(module)
    return module


def _folder(out: Path, kind: str, case: Case) -> Path:
    folder = out / kind / case.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
