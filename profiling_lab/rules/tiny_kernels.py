# SPDX-License-Identifier: Apache-2.0
"""Which lines launch many tiny kernels? A fused kernel or a CUDA graph needs fewer launches.

A line is charged for its launches in forward and in backward; lines of one function are one finding, at the
line that costs most. All kernels of a CUDA graph are one launch. The cost is the GPU time of these kernels
plus the GPU's short idle times before them; batching and fusion save most of that. Calls that take long load
code or wait for room in the launch queue: their idle time is not counted, nor is that which a wait of the
host costs (see `sync_calls`, `implicit_sync`), nor that of lines that launch mostly copies (see `gap_cause`).
If the host waits after every few of these launches, the line is that of most waits: neither a fused kernel
nor a graph reaches over a wait. A line that waits again and again is a loop: functions that it calls belong
to it. If a line calls loops many times a step, as all layers for each word, it is that line. Launches of an
optimizer that are not of many tensors each are a cause of their own, `unfused_optimizer`. What cuDNN launches
for a recurrent layer is of medium severity at most.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.batched import batched
from profiling_lab.rules.callers import with_copies
from profiling_lab.rules.costs import gpu_time, host_blocked
from profiling_lab.rules.finding import RuleResult, Threshold, ms
from profiling_lab.rules.gap_pieces import copying_lines
from profiling_lab.rules.kernel_families import OF_MANY_TENSORS
from profiling_lab.rules.launch_loops import around, by_function, function_of, hottest, of_library
from profiling_lab.rules.launch_queue import launches_of
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import unique
from profiling_lab.trace.phases import LinePhase

SHORT = Threshold("short", "kernels take on average", 10_000, "ns, less than", "nsys-ai and TraceLens: 10 µs")
MANY = Threshold("many", "launches from one line", 100, "at least", "nsys-ai")
SLOW_CALL = Threshold("slow_call", "calls that load code take", 100_000, "ns, from", "HTA: 50-100 µs")
FEW = Threshold("few", "launches between two waits of the host", 4, "on average, less than", "ours")
SHARE = Threshold("share", "GPU and idle time", 0.01, "of the recording, at least", "ours")
WINS_FRAC = 0.7
REMEDY = "fuse the operations (torch.compile, a custom kernel), batch them, or replay them as a CUDA graph"
OF_OPTIMIZER = (
    "update all parameters at once: fused=True or foreach=True, torch._foreach_* in one of your own"
)


def check(view: View) -> RuleResult:
    gpu_time_ns, count = view.kernels_by_line()
    candidates = np.flatnonzero((count >= view[MANY]) & (gpu_time_ns < view[SHORT] * count))
    rows = np.flatnonzero(view.kernels & np.isin(view.operation_place, candidates))
    function, loops = by_function(view, rows, view[MANY])
    idle_by_line = np.where(copying_lines(view)[:-1], 0, view.launching_idle_by_line)
    findings = []
    unfused = (view.attribution.line_phase == LinePhase.OPTIMIZER) & ~view.kernels_named(OF_MANY_TENSORS)
    for part, mine in grouped(rows, 2 * function + unfused[rows]):
        number, of_optimizer = divmod(part, 2)
        duration, launches = view.operations.duration_ns[mine], launches_of(view, mine)
        lines = unique(view.operation_place[mine])
        quick = launches[view.calls.end_ns[launches] - view.calls.start_ns[launches] < view[SLOW_CALL]]
        gpu_ns, launch_ns = int(duration.sum()), host_blocked(view, quick).total_ns
        idle_ns = int(idle_by_line[lines[lines >= 0]].sum())
        cost_ns = min(gpu_time(view, mine) + idle_ns, view.span_ns)
        unknown = int((view.attribution.call[mine] < 0).sum())
        if len(launches) + unknown < view[MANY] or cost_ns < view[SHARE] * view.span_ns:
            continue
        backward = (view.attribution.phase[mine] == Phase.BACKWARD).any()
        loop = next((line for line in loops.values() if view.function_of_line[line] == number), None)
        functions = "one function" if loop is None else "a loop and what it calls"
        place, cut, left = around(view, launches, loop, view[FEW], view[MANY])
        place = place if cut else hottest(view, mine, duration, idle_by_line)
        found = view.finding(
            what=f"{len(mine):,} kernels of {duration.mean() / 1000:.1f} µs on average"
            f"{f' at {len(lines)} lines of {functions}' if len(lines) > 1 else ''}"
            f"{', forward and backward' if backward else ''}: {ms(gpu_ns)} on the GPU, {ms(launch_ns)} "
            f"to launch them; the GPU idled {ms(idle_ns)} before them{cut}",
            cost_ns=cost_ns,
            cost_of="GPU time, and idle time before their launches",
            place=place,
            rows=mine,
            weight=duration,
            remedy=OF_OPTIMIZER if of_optimizer else REMEDY,
            cause="unfused_optimizer" if of_optimizer else "",
            saving=batched(view, with_copies(view, mine, view[SHORT]), 1 - WINS_FRAC, left, loop),
            elsewhere=bool(cut) and loop is None and function_of(view, place) != number,
        )
        findings.append(of_library(view, mine, found))
    return findings or view.too_few_lines("that no line launches many tiny kernels") or ()


RULE = Rule(
    "tiny_kernels",
    "Which lines launch many tiny kernels?",
    (SHORT, MANY, SLOW_CALL, FEW, SHARE),
    check,
    __doc__ or "",
    time=Time.IDLE,
    generic=True,
    adds=True,
    wins_frac=WINS_FRAC,
)
