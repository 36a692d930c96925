# SPDX-License-Identifier: Apache-2.0
"""A rule of your own. README.md says what it must find.

profiling-lab check recorded/d_h200.sqlite --rules-from my_rules.py --only small_copies
"""

import numpy as np

from profiling_lab.rules import Rule, Threshold
from profiling_lab.trace.columns import MemoryKind

SMALL = Threshold("small", "bytes of one copy", 64 * 1024, "bytes, below", "ours: start-up time dominates")
MANY = Threshold("many", "copies", 50, "copies, at least", "ours: fewer are not worth a change")

HOST = (MemoryKind.PAGEABLE, MemoryKind.PINNED)


def check(view):
    operations = view.operations
    with_host = np.isin(operations.source_memory, HOST) | np.isin(operations.target_memory, HOST)
    rows = np.flatnonzero(view.copies & with_host & (operations.size_bytes < view[SMALL]))
    if len(rows) < view[MANY]:
        return ()
    took_ns = operations.duration_ns[rows]
    return [
        view.finding(
            f"{len(rows)} copies of less than {view[SMALL]:,.0f} bytes between host and GPU",
            cost_ns=int(took_ns.sum()),
            cost_of="copy time",
            place=view.hottest_line(rows, took_ns),
            rows=rows,
            weight=took_ns,
            remedy="gather them into one copy, or leave the values on the GPU",
        )
    ]


RULES = (Rule("small_copies", "Are there many small copies between host and GPU?", (SMALL, MANY), check),)
