# SPDX-License-Identifier: Apache-2.0
"""Timing, machine properties and result files. All measurements of this project use this package.

    timings = compare({"ours": lambda: f(x), "eager": lambda: g(x)}, device="cuda")
    timings["ours"].median_ns, timings["ours"].iqr_frac, ratio(timings["eager"], timings["ours"])

Importing this package does not load torch; measuring on CUDA does.
"""

from __future__ import annotations

from profiling_lab.measure.bench_files import BenchResult, bench
from profiling_lab.measure.calls import CallTime, time_call
from profiling_lab.measure.device import Machine, machine
from profiling_lab.measure.loop import LoopClock, LoopStep
from profiling_lab.measure.peaks import copy_rate, matmul_rate
from profiling_lab.measure.results import ResultsFile
from profiling_lab.measure.steps import compare_steps, interleaved, step_time
from profiling_lab.measure.timing import Timing, compare, ratio, ratio_interval

__all__ = [
    "BenchResult",
    "CallTime",
    "LoopClock",
    "LoopStep",
    "Machine",
    "ResultsFile",
    "Timing",
    "bench",
    "compare",
    "compare_steps",
    "copy_rate",
    "interleaved",
    "machine",
    "matmul_rate",
    "ratio",
    "ratio_interval",
    "step_time",
    "time_call",
]
