# SPDX-License-Identifier: Apache-2.0
"""The cost of copies that block the host: the time that the GPU loses because of them.

The GPU loses the time in which only these copies run, because other work could overlap with them. It also
loses idle time until the next wait of the host: without the blocking call the host would have launched
earlier. Both together are at most the duration of the call, unless the copies alone take longer. The wait for
earlier GPU work is not counted.
"""

from __future__ import annotations

import re

import numpy as np

from profiling_lab.analysis.busy import Busy
from profiling_lab.analysis.critical_path.savings import Saving, shorter
from profiling_lab.records import dataclass
from profiling_lab.rules.finding import ms
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64, MemoryKind, unique

_LARGE_BYTES = 1 << 20
_LINK_RATES = ((9.0, 50e9), (8.0, 24e9), (0.0, 12e9))
"""bytes per second of pinned memory, from a compute capability on: PCIe 5.0, 4.0 and 3.0, 16 lanes"""
COST_OF = "GPU idle because of them, and time in which only they run"


@dataclass(frozen=True, slots=True)
class CopyCost:
    """The cost in the process that lost most."""

    alone_ns: int
    """nothing else ran on its GPUs"""
    idle_ns: int
    each_ns: I64
    """the share of each given operation in both"""

    @property
    def total_ns(self) -> int:
        return self.alone_ns + self.idle_ns

    def __str__(self) -> str:
        return (
            f"for {ms(self.alone_ns)} nothing else ran on the GPU, and for {ms(self.idle_ns)} it idled "
            "because the host was blocked"
        )


def copy_cost(view: View, rows: I64) -> CopyCost:
    """`rows` are operations whose calls were recorded."""
    operations, call = view.operations, view.attribution.call
    each_ns, most = np.zeros(len(rows), dtype=np.int64), (0, 0)
    counts = np.zeros(len(operations), dtype=bool)
    counts[rows] = True
    for process in unique(operations.process[rows]).tolist():
        mine = np.flatnonzero(operations.process[rows] == process)
        others = np.flatnonzero(~counts & (operations.process == process))
        other_work = view.busy(others)
        start_ns, end_ns = operations.start_ns[rows[mine]], operations.end_ns[rows[mine]]
        together = Busy.of(start_ns, end_ns)
        alone_ns = together.total_ns - int(other_work.busy_within(together.start_ns, together.end_ns).sum())
        each_ns[mine] = end_ns - start_ns - other_work.busy_within(start_ns, end_ns)
        # Several operations of one call (a CUDA graph) block the host once.
        of, first = np.unique(call[rows[mine]], return_index=True)
        wait = view.waits_at_once(of)
        waits, costs = view.wait_costs(process, of)
        idle_ns = np.zeros(len(view.calls), dtype=np.int64)
        idle_ns[waits] = costs.each_ns
        released = np.where(wait >= 0, wait, of)
        # Without the call the host would be earlier by its length, whatever the GPU did meanwhile.
        blocked_ns = view.calls.end_ns[released] - view.calls.start_ns[of]
        of_alone_ns = np.bincount(np.searchsorted(of, call[rows[mine]]), weights=each_ns[mine])
        idle_ns = np.minimum(idle_ns[released], np.maximum(blocked_ns - of_alone_ns.astype(np.int64), 0))
        each_ns[mine[first]] += idle_ns
        all_idle_ns = int(idle_ns.sum())
        most = max(most, (alone_ns, all_idle_ns), key=sum)
    return CopyCost(*most, each_ns)


def pinned_saving(view: View, rows: I64) -> Saving:
    """Copies that no call waits for, from or to pinned memory: as fast as the link."""
    operations, call = view.operations, view.attribution.call[rows]
    wait = view.waits_at_once(call)
    calls = unique(np.concatenate([call, wait[wait >= 0]]))
    took_ns = np.maximum(operations.duration_ns[rows], 1)
    left = np.minimum(1e9 * operations.size_bytes[rows] / (_link_rate(view) * took_ns), 1.0)
    return shorter(rows, left) | Saving(calls=calls)


def _link_rate(view: View) -> float:
    """Bytes per second between host and GPU: of the fastest large copy of pinned memory in the recording; if
    there is none, of the link that such GPUs usually have.
    """
    operations = view.operations
    pinned = (operations.source_memory == MemoryKind.PINNED) | (operations.target_memory == MemoryKind.PINNED)
    large = view.copies & pinned & (operations.size_bytes >= _LARGE_BYTES) & (operations.duration_ns > 0)
    rates = 1e9 * operations.size_bytes[large] / operations.duration_ns[large]
    if len(rates):
        return float(rates.max())
    known = [float(gpu.compute) for gpu in view.trace.gpus if re.fullmatch(r"\d+\.\d+", gpu.compute)]
    newest = max(known, default=8.0)
    return next(rate for since, rate in _LINK_RATES if newest >= since)
