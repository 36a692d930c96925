# SPDX-License-Identifier: Apache-2.0
"""The exercise's training step with each HeavyLayer: time, share, kernels, and what the recorder costs.

    python benchmarks/heavy_layer_step.py -o benchmarks/results/heavy_layer_step.jsonl

Per implementation (the provider of a line):
  step_time             a step of training, all implementations in turns; and its spread and number of samples
  step_time_recorded    the same step under the recorder; recorder_overhead: its ratio to the plain step
  heavy_share, kernels, gpu_time, attributed     from a recording of a few steps
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from script import run_script

from profiling_lab.demo.training import training_script
from profiling_lab.measure import ResultsFile, compare_steps, interleaved, machine, ratio
from profiling_lab.recording import record
from profiling_lab.report import bottleneck
from profiling_lab.trace import Trace

BENCHMARK = "heavy_layer_step"
PROVIDERS = ("slow", "loop", "fast")
LAYER = "HeavyLayer"
RECORDED_STEPS = 5

Step = Callable[[], object]


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the exercise's training step with each HeavyLayer.")
    parser.add_argument(
        "--output", "-o", type=Path, help="append JSON lines here (default: print a summary only)"
    )
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--steps", type=int, default=20, help="steps per block (20)")
    parser.add_argument("--blocks", type=int, default=9, help="blocks per variant (9)")
    args = parser.parse_args()
    results = ResultsFile(args.output, machine("cuda"))
    case = {"batch": 32, "seq_len": 128, "d_model": 512, "layers": 4, "vocab": 10000, "dtype": args.dtype}
    with training_script() as script:
        steps = {heavy: make_step(script, heavy, args.dtype) for heavy in PROVIDERS}
        with TemporaryDirectory(prefix="profiling-lab-bench-") as folder:
            trace = Path(folder) / "run.sqlite"
            warm_up(steps, trace)
            timings = interleaved(steps, steps_per_block=args.steps, blocks=args.blocks)
            for heavy, step in steps.items():
                results.add_timing(BENCHMARK, case, heavy, timings[heavy], "step_time")
                measure_recorder(results, case, heavy, step, trace, args.steps, args.blocks)
                measure_share(results, case, heavy, step, trace)
    for line in results.lines:
        print(
            f"{line['provider']:5} {line['metric']:24} {line['value']:>16,.4f} {line['unit']}",
            file=sys.stderr,
        )
    return 0


def make_step(script: ModuleType, heavy: str, dtype: str) -> Step:
    """One training step on a batch that is on the GPU already."""
    args = script.parse_arguments(["--heavy", heavy, "--device", "cuda", "--dtype", dtype])
    model, dataloader, optimizer, device = script.build(args)
    data, target = (tensor.to(device) for tensor in next(iter(dataloader)))
    model.train()
    return lambda: script.training_step(model, data, target, optimizer, script.DTYPES[dtype])


def warm_up(steps: dict[str, Step], trace: Path) -> None:
    """Once under the recorder: NVTX asks at its first range, and never again, whether a tool listens."""
    with record(trace):
        for step in steps.values():
            for _ in range(3):
                step()


def measure_recorder(
    results: ResultsFile,
    case: dict[str, str | int | float | bool],
    heavy: str,
    step: Step,
    trace: Path,
    steps: int,
    blocks: int,
) -> None:
    """The step with and without the recorder, in turns."""
    contexts: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "plain": nullcontext,
        "recorded": lambda: record(trace, overwrite=True),
    }
    timings = compare_steps(step, contexts, steps_per_block=steps, blocks=blocks)
    results.add_timing(BENCHMARK, case, heavy, timings["recorded"], "step_time_recorded")
    results.add(
        BENCHMARK, case, heavy, "recorder_overhead", ratio(timings["recorded"], timings["plain"]), "ratio"
    )


def measure_share(
    results: ResultsFile, case: dict[str, str | int | float | bool], heavy: str, step: Step, trace: Path
) -> None:
    """What a recording of a few steps says about the layer."""
    with record(trace, overwrite=True):
        for _ in range(RECORDED_STEPS):
            step()
    with Trace.open(trace) as opened:
        found = bottleneck.find(opened)
    layer = next(layer for layer in found.layers if layer.name == LAYER)
    coverage = found.coverage
    facts = (
        ("gpu_time", coverage.gpu_ns / RECORDED_STEPS, "ns/step"),
        ("kernels", coverage.kernels / RECORDED_STEPS, "kernels/step"),
        ("attributed", coverage.attributed_frac, "frac of GPU time"),
        ("heavy_share", layer.share_frac, "frac of GPU time"),
        ("heavy_backward_share", layer.share_frac * layer.backward_ns / layer.gpu_ns, "frac of GPU time"),
        ("heavy_kernels", layer.kernels / RECORDED_STEPS, "kernels/step"),
    )
    for metric, value, unit in facts:
        results.add(BENCHMARK, case, heavy, metric, value, unit)


if __name__ == "__main__":
    run_script(main)
