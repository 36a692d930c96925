# SPDX-License-Identifier: Apache-2.0
"""When a recording paused: `profiling-lab record` with a schedule records windows, and nothing in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiling_lab.trace.columns import I32, I64, NO_SEQUENCE
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.spans import Spans

_OPEN_END = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Pauses:
    spans: Spans
    """from the end of each window to the start of the next, for each process"""
    step_starts_ns: I64
    """starts of windows that begin with a step"""


def read_pauses(file: SqliteFile | None, processes: I32, ids: Sequence[int]) -> Pauses:
    """The pauses of these processes, of which `ids` are the global ids; none in a recording without windows.

    In a merged file a window is of one process. A window that nothing closed lasts until the next one: what
    is not known to be a pause is none.
    """
    start_ns = end_ns = first_step = owner = np.empty(0, dtype=np.int64)
    if file is not None and {"start", "end"} <= set(file.columns("PYREC_WINDOW")):
        rows = file.select(
            "PYREC_WINDOW", {"start": 0, "end": _OPEN_END, "firstStep": NO_SEQUENCE, "globalPid": 0}
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
