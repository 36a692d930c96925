# SPDX-License-Identifier: Apache-2.0
"""What limits the kernels of layer_norm_gelu at some widths, counted by Nsight Compute.

    python benchmarks/layer_norm_gelu/limits.py -o benchmarks/results/layer_norm_gelu_limits.jsonl

Of each kernel of a forward and a backward of 2^26 elements: its time, the shares of what the memory, the
issue of instructions and the pipe of loads and stores can do, and its instructions for an element. At a
copy's rate an H200 can issue about 28 for an element of a 16-bit forward and 42 of a backward, twice as
many in float32.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from profiling_lab.analysis.ncu import report as ncu_report
from profiling_lab.errors import UsageError
from profiling_lab.measure import ResultsFile, machine
from profiling_lab.ops import layer_norm_gelu

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the scripts that all benchmarks share
from script import run_script

ELEMENTS = 1 << 26
DTYPES = ("bfloat16", "float32")
WIDTHS = (33, 64, 256, 520, 640, 1001, 1025, 2049, 4097, 8193, 8200, 16392, 65537, 98304)
INSTRUCTIONS, THREADS_OF_WARP = "smsp__inst_executed.sum", 32  # counted once for a warp
METRICS = {
    "gpu__time_duration.sum": ("time", "ns"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("memory", "%"),
    "smsp__issue_active.avg.pct_of_peak_sustained_active": ("issue", "%"),
    "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed": ("loads_and_stores", "%"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("warps", "%"),
    INSTRUCTIONS: ("instructions", "per element"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask Nsight Compute what limits layer_norm_gelu.")
    parser.add_argument("--output", "-o", type=Path, help="append JSON lines here")
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS)
    parser.add_argument("--calls", action="store_true", help="only make the calls: what ncu runs")
    args = parser.parse_args()
    if args.calls:
        make_calls(args.widths)
        return 0
    if (ncu := shutil.which("ncu")) is None:
        raise UsageError("ncu was not found on PATH: install NVIDIA Nsight Compute")
    results = ResultsFile(args.output, machine("cuda"))
    with TemporaryDirectory() as folder:
        log = Path(folder) / "calls.csv"
        command = [
            ncu,
            "--profile-from-start",
            "off",
            "--metrics",
            ",".join(METRICS),
            "--csv",
            "--page",
            "raw",
        ]
        own = [sys.executable, __file__, "--calls", "--widths", *map(str, args.widths)]
        subprocess.run([*command, "--log-file", str(log), *own], check=True)
        add_kernels(results, log, args.widths)
    return 0


def make_calls(widths: Sequence[int]) -> None:
    """Forward and backward at each dtype and width, each between a profiler's start and stop."""
    runtime = torch.cuda.cudart()
    for dtype in DTYPES:
        for d in widths:
            options = {"device": "cuda", "dtype": getattr(torch, dtype)}
            x = torch.randn(ELEMENTS // d, d, **options, requires_grad=True)
            weight, bias = (torch.randn(d, **options, requires_grad=True) for _ in range(2))
            dy = torch.randn_like(x)
            for watched in (False, True):
                torch.cuda.synchronize()
                if watched:
                    runtime.cudaProfilerStart()
                y = layer_norm_gelu(x, weight, bias)
                torch.autograd.grad(y, (x, weight, bias), dy)
                torch.cuda.synchronize()
                if watched:
                    runtime.cudaProfilerStop()


def add_kernels(results: ResultsFile, log: Path, widths: Sequence[int]) -> None:
    cases = [{"dtype": dtype, "d": d} for dtype in DTYPES for d in widths]
    forwards = -1
    for launch in ncu_report.read(log).launches:
        forwards += "forward" in launch.function  # what follows is its backward
        elements = ELEMENTS // cases[forwards]["d"] * cases[forwards]["d"]
        case = {**cases[forwards], "elements": elements, "kernel": launch.function}
        for counter, (metric, unit) in METRICS.items():
            value = launch.value(counter)
            if counter == INSTRUCTIONS:
                value *= THREADS_OF_WARP / elements
            results.add("layer_norm_gelu_limits", case, "ours", metric, value, unit)


if __name__ == "__main__":
    run_script(main)
