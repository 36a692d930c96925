# SPDX-License-Identifier: Apache-2.0
"""What two CUDA events measure: the kernels between them, and the gaps in which the GPU waited for the host.

    python benchmarks/event_gaps.py -o benchmarks/results/event_gaps.jsonl

One large kernel and a chain of tiny ones, in turns of one process, each turn recorded. Of each: `events`, the
time between the events; `kernels`, the sum of the kernels' own times in the recording; `count`, their number.
The events have the recorder's cost for each launch in them.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from script import run_script

import profiling_lab
from profiling_lab.measure import ResultsFile, machine

BENCHMARK = "event_gaps"
TINY, ROUNDS = 200, 5
KERNELS = "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL"


def programs() -> dict[str, Callable[[], object]]:
    large = torch.randn(4096, 4096, device="cuda")
    tiny = torch.randn(1024, device="cuda")

    def chain() -> None:
        for _ in range(TINY):
            tiny.mul_(0.999)

    return {"one large kernel": lambda: large @ large, f"{TINY} tiny kernels": chain}


def measured(call: Callable[[], object], path: Path) -> tuple[float, int, int]:
    """Nanoseconds between the events, the number of kernels, and the sum of their times."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with profiling_lab.record(path, overwrite=True):
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
    with sqlite3.connect(path) as file:
        count, work_ns = file.execute(KERNELS).fetchone()
    return 1e6 * begin.elapsed_time(end), count, work_ns


def main() -> int:
    parser = argparse.ArgumentParser(description="Events against the kernels between them.")
    parser.add_argument("-o", "--output", type=Path, help="JSON lines, appended (default: none)")
    args = parser.parse_args()
    results = ResultsFile(args.output, machine("cuda"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        with profiling_lab.record(path):  # CUPTI begins before CUDA does
            calls = programs()
            for call in calls.values():
                call()
            torch.cuda.synchronize()
        found: dict[str, list[tuple[float, int, int]]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                found[name].append(measured(call, path))
    for name, turns in found.items():
        events, counts, works = (statistics.median(each) for each in zip(*turns, strict=True))
        case = {"rounds": ROUNDS}
        results.add(BENCHMARK, case, name, "events", events, "ns")
        results.add(BENCHMARK, case, name, "kernels", works, "ns")
        results.add(BENCHMARK, case, name, "count", counts, "kernels")
        print(f"{name:20} {events / 1e3:10.1f} us between events  {works / 1e3:10.1f} us in {counts} kernels")
    return 0


if __name__ == "__main__":
    run_script(main)
