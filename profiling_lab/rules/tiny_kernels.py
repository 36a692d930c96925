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
from profiling_lab.rules import launch_loops
from profiling_lab.rules.batched import FUSED, batched
from profiling_lab.rules.callers import with_copies
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import RuleResult, Threshold, ms
from profiling_lab.rules.gap_pieces import copying_lines
from profiling_lab.rules.independent_loops import ALL_AT_ONCE, IndependentLoops
from profiling_lab.rules.kernel_families import OF_MANY_TENSORS
from profiling_lab.rules.launch_queue import launches_of, launching_ns
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import unique
from profiling_lab.trace.phases import LinePhase

SHORT = Threshold("short", "kernels take on average", 10_000, "ns, less than", "nsys-ai and TraceLens: 10 µs")
MANY = Threshold("many", "launches from one line", 100, "at least", "nsys-ai")
SLOW_CALL = Threshold("slow_call", "calls that load code take", 100_000, "ns, from", "HTA: 50-100 µs")
FEW = Threshold("few", "launches between two waits of the host", 4, "on average, less than", "ours")
SHARE = Threshold("share", "GPU and idle time", 0.01, "of the recording, at least", "ours")
REMEDY = "fuse the operations (torch.compile, a custom kernel), batch them, or replay them as a CUDA graph"


def check(view: View) -> RuleResult:
    gpu_time_ns, count = view.kernels_by_line()
    candidates = np.flatnonzero((count >= view[MANY]) & (gpu_time_ns < view[SHORT] * count))
    rows = np.flatnonzero(view.kernels & np.isin(view.operation_place, candidates))
    if not len(rows):
        return view.too_few_lines("that no line launches many tiny kernels") or ()
    function, loops = launch_loops.by_function(view, rows, view[MANY])
    unfused = (view.attribution.line_phase == LinePhase.OPTIMIZER) & ~view.kernels_named(OF_MANY_TENSORS)
    unfused, items = unfused[rows], IndependentLoops(view)
    function = np.where(unfused, function, items.numbered(rows, function))
    idle_by_line = np.where(copying_lines(view)[:-1], 0, view.launching_idle_by_line)
    findings = []
    for part, mine in grouped(rows, 2 * function + unfused):
        number, of_optimizer = divmod(part, 2)
        duration, launches = view.operations.duration_ns[mine], launches_of(view, mine)
        lines = unique(view.operation_place[mine])
        launch_ns = launching_ns(view, launches, view[SLOW_CALL])
        idle_ns = int(idle_by_line[lines[lines >= 0]].sum())
        cost_ns = min(gpu_time(view, mine) + idle_ns, view.span_ns)
        unknown = int((view.attribution.call[mine] < 0).sum())
        if len(launches) + unknown < view[MANY] or cost_ns < view[SHARE] * view.span_ns:
            continue
        loop, of_items = loops.get(number), items.at_once(number)
        place, cut, left = launch_loops.around(view, launches, loop, view[FEW], view[MANY])
        place = place if cut else launch_loops.hottest(view, mine, duration, idle_by_line)
        saving = batched(view, with_copies(view, mine, view[SHORT]), FUSED, left, loop is not None)
        place, cut, saving = of_items or (place, cut, saving)
        in_loop = loop is not None or of_items is not None
        found = view.finding(
            what=f"{launch_loops.kernels_at(view, mine, in_loop)}, {ms(launch_ns)} to launch them; "
            f"the GPU idled {ms(idle_ns)} before them{cut}",
            cost_ns=cost_ns,
            cost_of="GPU time, and idle time before their launches",
            place=place,
            rows=mine,
            weight=duration,
            remedy=ALL_AT_ONCE if of_items else launch_loops.OF_OPTIMIZER if of_optimizer else REMEDY,
            cause="unfused_optimizer" if of_optimizer else "",
            saving=saving,
            elsewhere=bool(cut) and loop is None and launch_loops.function_of(view, place) != number,
        )
        findings.append(launch_loops.of_library(view, mine, found))
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
    wins_frac=1 - FUSED,
)
