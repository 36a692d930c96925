# SPDX-License-Identifier: Apache-2.0
"""The time of memory-bound kernels over their occupancy: how much of it is enough?

    python benchmarks/occupancy_sweep.py -o benchmarks/results/occupancy_sweep.jsonl

The kernels are the repaired attention.cu of the exercises E33 and E34. Each launch asks for shared memory
that it does not use, so that one to four blocks of 256 threads fit on an SM. Nothing else changes. The rate
counts the keys and values, which are read once. Written for 228 KB of shared memory and 2048 threads on an
SM (H100, H200). Needs nvcc.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from script import run_script, say

from profiling_lab.exercises import cuda_build, find
from profiling_lab.exercises.e33_low_memory_throughput.repair import TASKS as LOW_THROUGHPUT
from profiling_lab.exercises.e34_low_occupancy.repair import TASKS as LOW_OCCUPANCY
from profiling_lab.exercises.kernel_repair import launchers
from profiling_lab.measure import ResultsFile, compare, machine

BENCHMARK = "occupancy_sweep"
TASKS = {"low-memory-throughput": LOW_THROUGHPUT, "low-occupancy": LOW_OCCUPANCY}
BLOCKS = (1, 2, 3, 4)
SHARED_OF_SM, RESERVED, OWN = 228 * 1024, 1024, 8 * 1024
WARPS_OF_BLOCK, WARPS_OF_SM = 8, 64
_LAUNCH = re.compile(r"(\w+)<<<(.+?), kThreads>>>\(")


def padded(source: str, blocks: int) -> str:
    """The source with launches of which `blocks` fit on an SM."""
    unused = SHARED_OF_SM // blocks - RESERVED - OWN
    allow = "cudaFuncAttributeMaxDynamicSharedMemorySize"
    return _LAUNCH.sub(
        rf"cudaFuncSetAttribute(\1, {allow}, {unused});\n  \1<<<\2, kThreads, {unused}>>>(", source
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    results = ResultsFile(args.output, machine("cuda"))
    for slug, tasks in TASKS.items():
        source = (find(slug).folder / "solutions" / "attention.cu").read_text(encoding="utf-8")
        case = tasks[0].make(torch.Generator("cuda").manual_seed(0), -1)
        calls: dict[str, Callable[[], object]] = {}
        with tempfile.TemporaryDirectory() as folder:
            for blocks in BLOCKS:
                changed = Path(folder) / f"{blocks}.cu"
                changed.write_text(padded(source, blocks), encoding="utf-8")
                library = cuda_build.for_gpu(changed, changed.with_suffix(".so"))
                calls[str(blocks)] = partial(launchers(str(library), tasks)["attend"], *case.arguments)
                if error := calls[str(blocks)]():
                    say(f"{slug} with {blocks} blocks returned the CUDA error {error}")
                    return 1
            timings = compare(calls, rounds=args.rounds)
        moved = sum(each.numel() * each.element_size() for each in case.arguments[1:3])  # keys and values
        for blocks in BLOCKS:
            pct = 100 * blocks * WARPS_OF_BLOCK / WARPS_OF_SM
            at = {"exercise": slug, "blocks_per_sm": blocks, "theoretical_occupancy_pct": pct}
            timing = timings[str(blocks)]
            results.add_timing(BENCHMARK, at, "solution", timing)
            results.add(BENCHMARK, at, "solution", "rate", moved / timing.median_ns, "GB/s")
            ms, rate = timing.median_ns / 1e6, moved / timing.median_ns
            print(f"{slug:24} {pct:5.1f} %  {ms:8.3f} ms  {rate:7.0f} GB/s")
    return 0


if __name__ == "__main__":
    run_script(main)
