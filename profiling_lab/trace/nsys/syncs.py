# SPDX-License-Identifier: Apache-2.0
"""Synchronisations recorded by CUPTI, which only some analyses need."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import I32, I64, SyncKind, Syncs, full, unique
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.process_ids import Registry, process_part
from profiling_lab.trace.source import Tables

_NO_STREAM = (1 << 32) - 1
"""CUPTI_SYNCHRONIZATION_INVALID_VALUE"""


def read_syncs(file: SqliteFile, processes: Registry, whole: Tables) -> Syncs:
    """All synchronisations; empty if the file has no such table."""
    table = file.newest("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")
    if table is None:
        return Syncs.none()
    # Before 2022 the kind was in a column that is called deprecated today, and is empty now.
    kinds = [name for name in ("syncType", "deprecatedSyncType") if name in file.columns(table)]
    rows = file.select(
        table,
        {
            "start": 0,
            "end": 0,
            "globalPid": 0,
            "correlationId": -1,
            "streamId": -1,
            **dict.fromkeys(kinds, 0),
        },
    )
    kind = np.zeros(len(rows["start"]), dtype=np.int64)
    for name in reversed(kinds):
        kind = np.where(rows[name] > 0, rows[name], kind)
    known = np.where((kind > 0) & (kind <= max(SyncKind)), kind, SyncKind.UNKNOWN).astype(np.uint8)
    return Syncs(
        start_ns=rows["start"],
        end_ns=np.maximum(rows["start"], rows["end"]),
        process=_processes(processes, whole, rows["globalPid"]),
        correlation=rows["correlationId"],
        kind=known,
        stream=np.where(rows["streamId"] == _NO_STREAM, -1, rows["streamId"]),
    )


def _processes(processes: Registry, whole: Tables, global_pid: I64) -> I32:
    """The process per row. Rows without one get the process that made all calls; -1 if several did."""
    callers = unique(whole.calls.process)
    process = full(len(global_pid), int(callers[0]) if len(callers) == 1 else -1, np.int32)
    named = global_pid != 0
    process[named] = processes.number(process_part(global_pid[named]))
    return process
