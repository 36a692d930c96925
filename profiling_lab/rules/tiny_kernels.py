# SPDX-License-Identifier: Apache-2.0
"""Which lines launch many tiny kernels? A fused kernel or a CUDA graph needs fewer launches.

A line counts with what it launched forward and in backward. The cost is the GPU time of these kernels and the
short idle times of the GPU until the next of them was launched: fusing wins most of that.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.finding import Threshold, Verdict, ms
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

SHORT = Threshold("short", "kernels take on average", 10_000, "ns, less than", "nsys-ai and TraceLens: 10 µs")
MANY = Threshold("many", "launches from one line", 100, "at least", "nsys-ai")
SHARE = Threshold("share", "GPU and idle time", 0.01, "of the recording, at least", "ours")
REMEDY = "fuse the operations (torch.compile, a custom kernel), batch them, or replay them as a CUDA graph"


def check(view: View) -> Verdict:
    operations = view.operations
    gpu_time_ns, count = view.kernels_by_line()
    candidates = np.flatnonzero((count >= view[MANY]) & (gpu_time_ns < view[SHORT] * count))
    rows = np.flatnonzero(view.kernels & np.isin(view.operation_place, candidates))
    findings = []
    for number, mine in grouped(rows, view.operation_place[rows]):
        duration = operations.duration_ns[mine]
        gpu_ns, launch_ns = int(duration.sum()), int(view.call_ns(mine).sum())
        idle_ns = int(view.launching_idle_by_line[number]) if number >= 0 else 0
        cost_ns = gpu_ns + idle_ns
        if cost_ns < view[SHARE] * view.span_ns:
            continue
        findings.append(
            view.finding(
                what=f"{len(mine):,} kernels of {duration.mean() / 1000:.1f} µs on average, forward and "
                f"backward: {ms(gpu_ns)} on the GPU, {ms(launch_ns)} to launch them; the GPU idled "
                f"{ms(idle_ns)} until the next of them came",
                cost_ns=cost_ns,
                cost_of="GPU time, and idle time before their launches",
                place=view.place(number),
                rows=mine,
                weight=duration,
                remedy=REMEDY,
            )
        )
    return findings or view.too_few_lines("that no line launches many tiny kernels") or ()


RULE = Rule(
    "tiny_kernels",
    "Which lines launch many tiny kernels?",
    (SHORT, MANY, SHARE),
    check,
    __doc__ or "",
    time=Time.IDLE,
    generic=True,
)
