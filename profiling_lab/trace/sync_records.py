# SPDX-License-Identifier: Apache-2.0
"""Synchronizations as CUPTI noted them, read when they are asked for: most tables do without."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import I32, I64, SyncKind, Syncs, full
from profiling_lab.trace.kineto.source import ChromeSource
from profiling_lab.trace.nsys.operations import FARTHEST_NS
from profiling_lab.trace.nsys.source import SqliteSource
from profiling_lab.trace.process_ids import process_part
from profiling_lab.trace.trace import Trace


def read_syncs(trace: Trace) -> Syncs:
    """Those of the window; none where the file has no such table. Rows at impossible times are left out."""
    if isinstance(trace.source, ChromeSource):
        return _possible(trace, trace.source.syncs())
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
    known = np.where((kind > 0) & (kind <= max(SyncKind)), kind, SyncKind.UNKNOWN).astype(np.uint8)
    every = Syncs(
        start_ns=rows["start"],
        end_ns=np.maximum(rows["start"], rows["end"]),
        process=_processes(trace, rows["globalPid"]),
        correlation=rows["correlationId"],
        kind=known,
    )
    return _possible(trace, every)


def _processes(trace: Trace, global_pid: I64) -> I32:
    """Rows that name no process are of the one that made all calls; -1 where several did."""
    callers = np.unique(trace.whole.calls.process)
    process = full(len(global_pid), int(callers[0]) if len(callers) == 1 else -1, np.int32)
    named = global_pid != 0
    process[named] = trace.source.processes.number(process_part(global_pid[named]))
    return process


def _possible(trace: Trace, syncs: Syncs) -> Syncs:
    """Those at possible times and inside of the window."""
    kept = (syncs.start_ns > -FARTHEST_NS) & (syncs.end_ns < FARTHEST_NS)
    if trace.window is not None:
        kept &= trace.window.host.touch(syncs.process, syncs.start_ns, syncs.end_ns)
    return Syncs(
        syncs.start_ns[kept],
        syncs.end_ns[kept],
        syncs.process[kept],
        syncs.correlation[kept],
        syncs.kind[kept],
    )
