# SPDX-License-Identifier: Apache-2.0
"""What recording costs: the exercise's training step plain, recorded in part, recorded in full, and by peers.

    python benchmarks/recorder_overhead.py -o benchmarks/results/recorder_overhead.jsonl

Per HeavyLayer (slow: few kernels; loop: bound by launches; fast) all providers take turns in one process.
Every provider has step_time, and overhead: the ratio of its step to the plain step of the same turns.
Ours have overhead_per_call too (nanoseconds of step time for each recorded CUDA call) and callback (what one
callback of ours took by the recorder's own clock). --peers adds torch.profiler and emit_nvtx, in turns of
their own after ours, because torch.profiler leaves CUPTI attached.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from heavy_layer_step import PROVIDERS, Step, make_step, warm_up

from profiling_lab.demo.training import training_script
from profiling_lab.measure import ResultsFile, compare_steps, machine, ratio
from profiling_lab.recording import Recorder

BENCHMARK = "recorder_overhead"
Contexts = dict[str, Callable[[], AbstractContextManager[object]]]

PARTS: dict[str, dict[str, bool]] = {
    "recorder: GPU records and calls": {"stacks": False, "autograd": False, "nvtx": False},
    "recorder: and Python stacks": {"autograd": False, "nvtx": False},
    "recorder: everything": {},
}


class Recorded:
    """A recording as a context that keeps its last file and its last summary."""

    def __init__(self, path: Path, options: dict[str, bool]) -> None:
        self.path, self.options = path, options
        self.calls = 0
        self.callback_ns: float | None = None

    def __enter__(self) -> None:
        self._recorder = Recorder(self.path, overwrite=True, **self.options)
        self._recorder.start()

    def __exit__(self, *_: object) -> None:
        summary = self._recorder.stop()
        self.calls = summary.launches
        sampled = summary.meta.get("overhead_callback_ns")
        self.callback_ns = None if sampled is None else float(sampled)


def peers() -> Contexts:
    from torch.profiler import ProfilerActivity, profile

    both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    return {
        "torch.profiler": lambda: profile(activities=both),
        "torch.profiler with_stack": lambda: profile(activities=both, with_stack=True),
        "emit_nvtx, nobody listening": lambda: torch.autograd.profiler.emit_nvtx(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what recording costs.")
    parser.add_argument("--output", "-o", type=Path, help="append JSON lines here")
    parser.add_argument("--steps", type=int, default=20, help="steps per block (20)")
    parser.add_argument("--blocks", type=int, default=9, help="blocks per provider (9)")
    parser.add_argument("--heavy", choices=PROVIDERS, nargs="+", default=list(PROVIDERS))
    parser.add_argument("--peers", action="store_true", help="torch.profiler and emit_nvtx, too")
    args = parser.parse_args()
    results = ResultsFile(args.output, machine("cuda"))
    with training_script() as script, TemporaryDirectory(prefix="profiling-lab-bench-") as folder:
        steps = {heavy: make_step(script, heavy, "fp32") for heavy in args.heavy}
        path = Path(folder) / "run.sqlite"
        warm_up(steps, path)
        for heavy, step in steps.items():
            measure_ours(results, heavy, step, path, args.steps, args.blocks)
        if args.peers:
            for heavy, step in steps.items():
                measure(results, heavy, step, peers(), args.steps, args.blocks)
    for line in results.lines:
        case: Any = line["case"]
        print(
            f"{case['heavy']:5} {line['provider']:34} {line['metric']:20} {line['value']:>14,.4f}",
            line["unit"],
            file=sys.stderr,
        )
    return 0


def measure(
    results: ResultsFile, heavy: str, step: Step, contexts: Contexts, steps: int, blocks: int
) -> dict[str, float]:
    """Adds step_time and overhead of every context; returns nanoseconds per step by provider."""
    timings = compare_steps(step, {"plain": nullcontext, **contexts}, steps_per_block=steps, blocks=blocks)
    for provider, timing in timings.items():
        results.add_timing(BENCHMARK, {"heavy": heavy}, provider, timing, "step_time")
        if provider != "plain":
            cost = ratio(timing, timings["plain"])
            results.add(BENCHMARK, {"heavy": heavy}, provider, "overhead", cost, "ratio")
    return {provider: timing.median_ns for provider, timing in timings.items()}


def measure_ours(results: ResultsFile, heavy: str, step: Step, path: Path, steps: int, blocks: int) -> None:
    """Ours in parts; `measure` runs a block's warm-up inside the context too, so calls are counted apart."""
    recorded = {name: Recorded(path, options) for name, options in PARTS.items()}
    contexts: Contexts = {name: (lambda context=context: context) for name, context in recorded.items()}
    times = measure(results, heavy, step, contexts, steps, blocks)
    for name, context in recorded.items():
        with context:
            for _ in range(steps):
                step()
        calls = context.calls / steps
        extra = (times[name] - times["plain"]) / calls
        results.add(BENCHMARK, {"heavy": heavy}, name, "calls", calls, "calls/step")
        results.add(BENCHMARK, {"heavy": heavy}, name, "overhead_per_call", extra, "ns/call")
        if context.callback_ns is not None:
            results.add(BENCHMARK, {"heavy": heavy}, name, "callback", context.callback_ns, "ns/call")


if __name__ == "__main__":
    sys.exit(main())
