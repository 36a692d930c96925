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
import ctypes
import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from script import run_script, say

from profiling_lab.exercises import cuda_build, find
from profiling_lab.exercises.attention_cases import CASES, call
from profiling_lab.measure import ResultsFile, compare, machine

BENCHMARK = "occupancy_sweep"
SLUGS = ("low-memory-throughput", "low-occupancy")
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
    for slug in SLUGS:
        source = (find(slug).folder / "solutions" / "attention.cu").read_text(encoding="utf-8")
        case = CASES[slug]
        rows, count = case.full
        inputs = case.inputs(rows, count, "cuda", 0)
        outputs = [torch.empty(shape, device="cuda") for shape in case.outputs(rows, count).values()]
        work = torch.empty(case.work(rows, count), device="cuda")
        calls: dict[str, Callable[[], object]] = {}
        with tempfile.TemporaryDirectory() as folder:
            for blocks in BLOCKS:
                changed = Path(folder) / f"{blocks}.cu"
                changed.write_text(padded(source, blocks), encoding="utf-8")
                library = ctypes.CDLL(str(cuda_build.for_gpu(changed, changed.with_suffix(".so"))))
                calls[str(blocks)] = partial(call, library, inputs, outputs, work)
                if error := calls[str(blocks)]():
                    say(f"{slug} with {blocks} blocks returned the CUDA error {error}")
                    return 1
            timings = compare(calls, rounds=args.rounds)
        moved = sum(each.numel() * each.element_size() for each in inputs[1:])
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
