# SPDX-License-Identifier: Apache-2.0
"""The events of torch's allocator that torch.profiler writes with profile_memory=True, as a history.

A size is that of the block, as torch counts it. Each event has the totals after it. What was allocated before
the profiler started is known as a sum only. Older versions wrote no addresses: theirs are no history, because
nothing tells what a free frees.
"""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.trace.columns import I32, NO_SEQUENCE, Ranges
from profiling_lab.trace.kineto.events import Table
from profiling_lab.trace.kineto.stacks import BLEED_NS
from profiling_lab.trace.memory_history import Action, MemoryHistory, Segments, Totals, UsedBlocks, sane_sizes


def chrome_memory_history(
    table: Table, process: I32, thread: I32, ranges: Ranges
) -> tuple[MemoryHistory, ...]:
    """One history per process and device. process, thread: of each event; ranges: operators with stacks."""
    known = np.ones(len(process), dtype=bool)
    for name in ("address", "bytes", "allocated", "reserved"):
        known &= table[name] != NO_SEQUENCE
    rows = np.flatnonzero(known)
    rows = rows[np.argsort(table["time_ns"][rows], kind="stable")]
    operator, stack = _around(table["time_ns"][rows], thread[rows], ranges)
    out = []
    pairs = np.stack([process[rows].astype(np.int64), table["device"][rows]], axis=1)
    for number, device in np.unique(pairs, axis=0).tolist():
        here = np.flatnonzero((pairs[:, 0] == number) & (pairs[:, 1] == device))
        mine = rows[here]
        size = table["bytes"][mine]
        out.append(
            MemoryHistory(
                process=number,
                device=device,
                action=np.where(size < 0, Action.FREE_REQUESTED, Action.ALLOC).astype(np.uint8),
                address=table["address"][mine],
                size=sane_sizes(np.abs(size)),
                time_ns=table["time_ns"][mine],
                stack=stack[here],
                segments=Segments.none(),
                blocks=UsedBlocks.none(),
                totals=Totals(
                    sane_sizes(table["allocated"][mine]),
                    sane_sizes(table["reserved"][mine]),
                    operator[here],
                    ranges.names,
                ),
            )
        )
    return tuple(out)


def _around(time_ns: np.ndarray, thread: I32, ranges: Ranges) -> tuple[I32, I32]:
    """Per event the name of the outermost operator in the innermost annotation, -1 none, and its stack."""
    parent, innermost, _ = _analysis.contain(
        ranges.start_ns, ranges.end_ns, ranges.thread, time_ns, thread, BLEED_NS
    )
    with_stack = _analysis.nearest_marked(parent, (ranges.stack > 0).astype(np.uint8))
    holder = np.append(with_stack, np.int32(-1))[innermost]
    stack = np.append(ranges.stack, np.int32(0))[holder].astype(np.int32)
    is_operator = np.array(["::" in name for name in ranges.names] or [False], dtype=bool)[ranges.name]
    outer = np.arange(len(ranges), dtype=np.int32)
    for row in np.argsort(ranges.start_ns, kind="stable").tolist():  # callers first
        above = int(parent[row])
        if above >= 0 and is_operator[row] and is_operator[above]:
            outer[row] = outer[above]
    name = np.append(ranges.name[outer], np.int32(-1)) if len(ranges) else np.array([-1], dtype=np.int32)
    return name[innermost].astype(np.int32), stack
