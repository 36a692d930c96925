# SPDX-License-Identifier: Apache-2.0
"""What two settings cost or gain, for the pages of the guide that name them.

    python benchmarks/switches.py -o benchmarks/results/switches.jsonl [--only launch_blocking,cudnn]

launch_blocking   a step of the demo's program with CUDA_LAUNCH_BLOCKING=1 and without
cudnn             convolutions with torch.backends.cudnn.benchmark and without
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from script import run_script, say

from profiling_lab.demo.program import copy_program
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.measure import ResultsFile, compare, machine, ratio

BENCHMARK = "switches"
TURNS, BATCHES, LIMIT_S = 3, 40, 120
# batch, channels in and out, side, kernel
CONVOLUTIONS = ((32, 64, 128, 56, 3), (16, 256, 256, 14, 3), (8, 3, 64, 224, 7), (32, 512, 128, 28, 1))
_STEP = re.compile(r"([\d.]+) ms per step")


def output_of(program: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        program, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S,
        env={**os.environ, **environment},
    )  # fmt: skip
    if done.returncode:
        raise NotEnoughDataError(f"{program[0]} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def demo(folder: Path, batches: int) -> list[str]:
    copy_program(folder)
    options = ["--device", "cuda", "--heavy", "fast", "--epochs", "2", "--batches", str(batches)]
    return [sys.executable, str(folder / "train_model.py"), *options]


def launch_blocking(results: ResultsFile, folder: Path) -> None:
    program = demo(folder, BATCHES)
    steps: dict[str, list[float]] = {"0": [], "1": []}
    for _ in range(TURNS):
        for value, each in steps.items():
            text = output_of(program, folder, CUDA_LAUNCH_BLOCKING=value)
            if not (found := _STEP.findall(text)):
                raise NotEnoughDataError(f"train_model.py told no step time: {text[-200:]}")
            each.append(float(found[-1]))  # of the second epoch
    for value, each in steps.items():
        case = {"program": "demo, --heavy fast", "turns": TURNS}
        results.add(BENCHMARK, case, f"CUDA_LAUNCH_BLOCKING={value}", "step", statistics.median(each), "ms")
        say(f"CUDA_LAUNCH_BLOCKING={value}: {each} ms per step")


def cudnn(results: ResultsFile, _: Path) -> None:
    for batch, inner, outer, side, kernel in CONVOLUTIONS:
        x = torch.randn(batch, inner, side, side, device="cuda")
        layer = torch.nn.Conv2d(inner, outer, kernel, padding=kernel // 2, device="cuda")

        def call(
            benchmark: bool, x: torch.Tensor = x, layer: torch.nn.Conv2d = layer
        ) -> Callable[[], object]:
            def forward() -> object:
                with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark), torch.no_grad():
                    return layer(x)

            return forward

        timings = compare(
            {"benchmark off": call(False), "benchmark on": call(True)}, device="cuda", rounds=15
        )
        case = {"batch": batch, "in": inner, "out": outer, "side": side, "kernel": kernel, "dtype": "float32"}
        for name, timing in timings.items():
            results.add_timing(BENCHMARK, case, name, timing)
        gain = ratio(timings["benchmark off"], timings["benchmark on"])
        say(f"{batch}x{inner}x{side}x{side} to {outer}, {kernel}x{kernel}: {gain:.2f} x with benchmark")


PARTS: dict[str, Callable[[ResultsFile, Path], None]] = {
    "launch_blocking": launch_blocking, "cudnn": cudnn,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON lines, appended (default: none)")
    parser.add_argument("--only", default=",".join(PARTS), help="with commas (default: all)")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := set(chosen) - PARTS.keys():
        parser.error(f"--only knows {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    results = ResultsFile(args.output, machine("cuda"))
    with tempfile.TemporaryDirectory() as name:
        for part in chosen:
            PARTS[part](results, Path(name))
    return 0


if __name__ == "__main__":
    run_script(main)
