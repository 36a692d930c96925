# SPDX-License-Identifier: Apache-2.0
"""Pauses of a recording: with a schedule, `profiling-lab record` records windows and nothing in between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiling_lab.trace.columns import I32, NO_SEQUENCE, OPEN_END
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.spans import Pauses, Spans


def read_pauses(file: SqliteFile, processes: I32, ids: Sequence[int]) -> Pauses:
    """The pauses of these processes, of which `ids` are the global ids; none in a recording without windows.

    In a merged file a window belongs to one process. A window that was never closed lasts until the next one:
    only known pauses count.
    """
    start_ns = end_ns = first_step = owner = np.empty(0, dtype=np.int64)
    if {"start", "end"} <= set(file.columns("PYREC_WINDOW")):
        rows = file.select(
            "PYREC_WINDOW", {"start": 0, "end": OPEN_END, "firstStep": NO_SEQUENCE, "globalPid": 0}
        )
        order = np.argsort(rows["start"], kind="stable")
        start_ns, end_ns, first_step, owner = (rows[name][order] for name in rows)
    parts = [(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))]
    for process in processes.tolist():
        mine = np.flatnonzero((owner == 0) | (owner == ids[process]))
        between = len(mine[1:])
        parts.append((np.full(between, process, dtype=np.int32), end_ns[mine[:-1]], start_ns[mine[1:]]))
    return Pauses(
        Spans.of(*(np.concatenate(column) for column in zip(*parts, strict=True))),
        start_ns[first_step != NO_SEQUENCE],
    )
