# SPDX-License-Identifier: Apache-2.0
"""When a recording paused: `profiling-lab record` with a schedule records windows, and nothing in between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiling_lab.trace.columns import I32, I64, NO_SEQUENCE
from profiling_lab.trace.spans import Spans
from profiling_lab.trace.sqlite_file import SqliteFile

_OPEN_END = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Pauses:
    spans: Spans
    """from the end of each window to the start of the next, for each process"""
    step_starts_ns: I64
    """starts of windows that begin with a step"""


def read_pauses(file: SqliteFile | None, processes: I32) -> Pauses:
    """The pauses of these processes; none in a recording without windows.

    A window that nothing closed lasts until the next one: what is not known to be a pause is none.
    """
    start_ns = end_ns = first_step = np.empty(0, dtype=np.int64)
    if file is not None and {"start", "end"} <= set(file.columns("PYREC_WINDOW")):
        rows = file.select("PYREC_WINDOW", {"start": 0, "end": _OPEN_END, "firstStep": NO_SEQUENCE})
        order = np.argsort(rows["start"], kind="stable")
        start_ns, end_ns, first_step = (rows[name][order] for name in ("start", "end", "firstStep"))
    times, size = len(processes), len(start_ns[1:])
    return Pauses(
        Spans.of(np.repeat(processes, size), np.tile(end_ns[:-1], times), np.tile(start_ns[1:], times)),
        start_ns[first_step != NO_SEQUENCE],
    )
