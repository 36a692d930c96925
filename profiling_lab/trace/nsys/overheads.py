# SPDX-License-Identifier: Apache-2.0
"""Overheads, from the tables of the nsys schema."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import FARTHEST_NS, I64, OverheadKind, Overheads
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.process_ids import Registry, process_part

# The first table is the profiler's own overhead; old ones have no kinds.
TABLES = {
    "PROFILER_OVERHEAD": OverheadKind.PROFILER,
    "CUPTI_ACTIVITY_KIND_OVERHEAD": OverheadKind.UNKNOWN,
}


def read_overheads(file: SqliteFile, processes: Registry, threads: Registry) -> Overheads:
    parts = [
        file.select(table, {"start": 0, "end": 0, "globalTid": 0, "overheadType": int(unnamed)})
        for stem, unnamed in TABLES.items()
        if (table := file.newest(stem)) is not None
    ]

    def column(name: str) -> I64:
        return np.concatenate([np.empty(0, dtype=np.int64), *(part[name] for part in parts)])

    start_ns, end_ns = column("start"), column("end")
    possible = (np.minimum(start_ns, end_ns) > -FARTHEST_NS) & (np.maximum(start_ns, end_ns) < FARTHEST_NS)
    start_ns, end_ns = start_ns[possible], end_ns[possible]
    tid, kind = column("globalTid")[possible], column("overheadType")[possible]
    known = (kind >= 0) & (kind <= max(OverheadKind))
    return Overheads(
        start_ns=start_ns,
        end_ns=np.maximum(start_ns, end_ns),
        process=processes.number(process_part(tid)),
        thread=threads.number(tid),
        kind=np.where(known, kind, OverheadKind.UNKNOWN).astype(np.uint8),
    )
