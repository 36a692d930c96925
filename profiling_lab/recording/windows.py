# SPDX-License-Identifier: Apache-2.0
"""The windows of a recording with pauses, and the records that belong to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.recording.spool import Records, Spool

OPEN_END = np.uint64(np.iinfo(np.uint64).max)
_NAMES = (33, 75)  # NVTX categories and domains, which have no time


def windows(spool: Spool) -> Records:
    """One row per window, by start. A window that was never closed (killed process) ends with the
    recording.
    """
    rows = spool.records["windows"]
    latest = {int(row["start_ns"]): row for row in rows}  # the closing row follows the opening one
    out = np.array(list(latest.values()), dtype=rows.dtype) if latest else rows[:0]
    out = out[np.argsort(out["start_ns"])]
    out["end_ns"][out["end_ns"] == 0] = OPEN_END
    return out


def keep_what_was_recorded(spool: Spool) -> None:
    """Drop records outside of all windows, if there are any: warm-up, and graphs replayed during a pause.

    A call belongs to the window in which it started. GPU work belongs to its call, whenever it ran. Other GPU
    work during a window is kept too, because the GPU was busy with it.
    """
    if not len(spool.records["windows"]) and spool.meta.get("windows") != "0":
        return
    rows = windows(spool)
    starts, ends = rows["start_ns"], rows["end_ns"]
    records = spool.records
    calls = records["calls"]
    records["calls"] = calls[_overlaps(starts, ends, calls["start_ns"], calls["start_ns"])]
    kept = records["calls"]["correlation_id"]
    for kind in ("kernels", "copies", "sets", "syncs", "graphs"):
        work = records[kind]
        of_a_call = np.isin(work["correlation_id"], kept)
        records[kind] = work[of_a_call | _overlaps(starts, ends, work["start_ns"], work["end_ns"])]
    for kind in ("overheads", "host_events"):
        rows = records[kind]
        records[kind] = rows[_overlaps(starts, ends, rows["start_ns"], rows["end_ns"])]
    ranges = records["ranges"]
    named = np.isin(ranges["type"], _NAMES)
    range_end = np.where(ranges["end_ns"] == 0, ranges["start_ns"], ranges["end_ns"])
    still_open = (ranges["end_ns"] == 0) & (ranges["type"] != 34)
    range_end[still_open] = OPEN_END
    records["ranges"] = ranges[named | _overlaps(starts, ends, ranges["start_ns"], range_end)]


def _overlaps(
    starts: npt.NDArray[Any], ends: npt.NDArray[Any], first: npt.NDArray[Any], last: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Per interval [first, last] whether it overlaps a window. Windows are sorted and disjoint."""
    if not len(starts):
        return np.zeros(len(first), dtype=bool)
    at = np.searchsorted(starts, last, side="right") - 1  # the last window that begins in time
    touched: npt.NDArray[np.bool_] = (at >= 0) & (ends[np.maximum(at, 0)] >= first)
    return touched
