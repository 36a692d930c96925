# SPDX-License-Identifier: Apache-2.0
"""Synchronizations as CUPTI noted them, read when they are asked for: most tables do without."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from profiling_lab.trace.columns import I32, I64, U8
from profiling_lab.trace.process_ids import process_part
from profiling_lab.trace.read_operations import FARTHEST_NS
from profiling_lab.trace.sqlite_source import SqliteSource
from profiling_lab.trace.trace import Trace


class SyncKind(IntEnum):
    """The numbers of CUPTI. A stream that waits for an event holds no thread of the host."""

    UNKNOWN = 0
    EVENT = 1
    STREAM_WAITS_EVENT = 2
    STREAM = 3
    DEVICE = 4


@dataclass(frozen=True, slots=True)
class Syncs:
    """One row per synchronization."""

    start_ns: I64
    end_ns: I64
    process: I32
    correlation: I64
    kind: U8
    """SyncKind"""

    def __len__(self) -> int:
        return len(self.start_ns)


def read_syncs(trace: Trace) -> Syncs:
    """Those of the window; none where the file has no such table. Rows at impossible times are left out."""
    none = np.empty(0, dtype=np.int64)
    table = None
    if isinstance(trace.source, SqliteSource):
        table = trace.file.newest("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")
    if table is None:
        return Syncs(none, none, none.astype(np.int32), none, none.astype(np.uint8))
    # Before 2022 the kind stood in a column that is named deprecated today, and is then empty.
    kinds = [name for name in ("syncType", "deprecatedSyncType") if name in trace.file.columns(table)]
    rows = trace.file.select(
        table,
        {"start": 0, "end": 0, "globalPid": 0, "correlationId": -1, **dict.fromkeys(kinds, 0)},
    )
    kind = np.zeros(len(rows["start"]), dtype=np.int64)
    for name in reversed(kinds):
        kind = np.where(rows[name] > 0, rows[name], kind)
    process = trace.source.processes.number(process_part(rows["globalPid"]))
    start_ns, end_ns = rows["start"], np.maximum(rows["start"], rows["end"])
    kept = (start_ns > -FARTHEST_NS) & (end_ns < FARTHEST_NS)
    if trace.window is not None:
        kept &= trace.window.host.touch(process, start_ns, end_ns)
    known = np.where((kind > 0) & (kind <= max(SyncKind)), kind, SyncKind.UNKNOWN).astype(np.uint8)
    return Syncs(start_ns[kept], end_ns[kept], process[kept], rows["correlationId"][kept], known[kept])
