# SPDX-License-Identifier: Apache-2.0
"""What samples of the host's Python cost on top of a recording: the exercise's launch-bound training step.

    python benchmarks/recorder/recorder_sampling.py -o benchmarks/results/recorder_sampling.jsonl

Per rate (the provider): step_time; overhead, the ratio of its step to that of a recording without samples in
the same turns; moments, the share of the asked moments that were sampled; moment, the time with the GIL.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from profiling_lab.demo.training import training_script
from profiling_lab.measure import ResultsFile, compare_steps, machine, ratio
from profiling_lab.recording import Recorder

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the scripts that all benchmarks share
from heavy_layer_step import make_step, warm_up
from script import run_script

BENCHMARK = "recorder_sampling"
RATES_HZ = (200, 1000, 2000)
HEAVY = "loop"


class Recorded:
    """A recording as a context; what it said about its samples adds up over its turns."""

    def __init__(self, path: Path, sample_hz: int) -> None:
        self.path, self.sample_hz = path, sample_hz
        self.seconds = 0.0
        self.moments = self.cost_ns = 0

    def __enter__(self) -> None:
        self._recorder = Recorder(self.path, overwrite=True, sample_hz=self.sample_hz)
        self._recorder.start()

    def __exit__(self, *_: object) -> None:
        summary = self._recorder.stop()
        self.seconds += summary.seconds
        self.moments += int(summary.meta.get("sample_moments", 0))
        self.cost_ns += int(summary.meta.get("overhead_sampling_ns", 0))


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what samples of the host's Python cost.")
    parser.add_argument("--output", "-o", type=Path, help="append JSON lines here")
    parser.add_argument("--steps", type=int, default=10, help="steps per block (10)")
    parser.add_argument("--blocks", type=int, default=9, help="blocks per rate (9)")
    args = parser.parse_args()
    results = ResultsFile(args.output, machine("cuda"))
    case = {"heavy": HEAVY}
    with training_script() as script, TemporaryDirectory(prefix="profiling-lab-bench-") as folder:
        path = Path(folder) / "run.sqlite"
        step = make_step(script, HEAVY, "fp32")
        warm_up({HEAVY: step}, path)
        recorded = {rate: Recorded(path, rate) for rate in (0, *RATES_HZ)}
        contexts: dict[str, Callable[[], AbstractContextManager[object]]] = {
            name(rate): (lambda context=context: context) for rate, context in recorded.items()
        }
        timings = compare_steps(step, contexts, steps_per_block=args.steps, blocks=args.blocks)
        for rate, context in recorded.items():
            timing = timings[name(rate)]
            results.add_timing(BENCHMARK, case, name(rate), timing, "step_time")
            if rate:
                results.add(BENCHMARK, case, name(rate), "overhead", ratio(timing, timings[name(0)]), "ratio")
                share = context.moments / (context.seconds * rate)
                results.add(BENCHMARK, case, name(rate), "moments", share, "ratio")
                results.add(BENCHMARK, case, name(rate), "moment", context.cost_ns / context.moments, "ns")
    for line in results.lines:
        print(
            f"{line['provider']:28} {line['metric']:12} {line['value']:>14,.4f} {line['unit']}",
            file=sys.stderr,
        )
    return 0


def name(rate: int) -> str:
    return f"samples, {rate} Hz" if rate else "no samples"


if __name__ == "__main__":
    run_script(main)
