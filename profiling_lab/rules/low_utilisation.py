# SPDX-License-Identifier: Apache-2.0
"""In which parts of the recording is a GPU mostly idle?

The recording is divided into equal parts. A part is low if the GPU is busy for less than half of it.
Neighbouring low parts form one interval, and one finding lists all intervals of one GPU. Copies count as busy
time. A GPU that is busy for less than half of the whole recording always has such an interval; TensorBoard's
profiler plugin tests for that.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.finding import (
    LONGER,
    WORTH,
    Abstain,
    Finding,
    RuleResult,
    Threshold,
    ms,
    percent,
    where,
)
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64

CHUNKS = Threshold(
    "chunks",
    "equal parts of the recording",
    30,
    "parts",
    "ours: nsys divides too, its number is not documented",
)
LOW = Threshold("low", "a GPU is busy", 0.5, "of a part, less than", "nsys: gpu_time_util")
ENOUGH = Threshold("enough", "operations of a GPU", 60, "at least", "ours: two for each part")
REMEDY = "check what the host does before this line: data loading, synchronisation, many small kernels"


def check(view: View) -> RuleResult:
    devices = [rows for _, _, rows in view.devices if len(rows) >= view[ENOUGH]]
    if not devices:
        return Abstain(f"no GPU has {view[ENOUGH]:.0f} operations, too few to divide into parts", LONGER)
    return [finding for rows in devices if (finding := _of_device(view, rows))]


def _of_device(view: View, rows: I64) -> Finding | None:
    operations, process = view.operations, int(view.operations.process[rows[0]])
    busy = view.busy(rows).filled(view.unknown(process))
    if not busy.span_ns:
        return None
    parts = min(max(int(view[CHUNKS]), 1), len(rows))  # more parts than operations mean nothing
    length = (busy.end_ns[-1] - busy.start_ns[0]) // parts
    edges = busy.start_ns[0] + np.arange(parts + 1, dtype=np.int64) * length
    edges[-1] = busy.end_ns[-1]  # the last part takes the remainder
    idle = busy.idle_within(edges[:-1], edges[1:])
    low = 1 - idle / np.maximum(np.diff(edges), 1) < view[LOW]
    cost_ns = int(idle[low].sum())
    if not low.any() or cost_ns < view[WORTH] * view.span_ns:
        return None
    # Neighbouring low parts form one interval.
    turns = np.flatnonzero(np.diff(np.concatenate([[0], low.astype(np.int8), [0]]))).reshape(-1, 2)
    began, ended = edges[turns].T
    # The operations that end the idle times, and the line that launched the one after the longest.
    gap_start, gap_end = busy.end_ns[:-1], busy.start_ns[1:]
    part = np.searchsorted(ended, gap_start, "right")
    inside = np.flatnonzero((part < len(began)) & (gap_end > np.append(began, 0)[part]))
    after_ns = gap_end[inside] - gap_start[inside]
    order = rows[np.argsort(operations.start_ns[rows], kind="stable")]
    late = order[np.searchsorted(operations.start_ns[order], gap_end[inside])]
    place = view.place(int(view.operation_place[late[np.argmax(after_ns)]])) if len(late) else None
    length_ns, longest = ended - began, int((ended - began).argmax())
    several = f"in {len(turns)} intervals, the longest " if len(turns) > 1 else ""
    return view.finding(
        what=f"device {operations.device[rows[0]]}{view.of_process(process)} is busy "
        f"{percent(1 - cost_ns / int(length_ns.sum()))} of {ms(int(length_ns.sum()))}, {several}from "
        f"{ms(int(began[longest] - busy.start_ns[0]))} after its first "
        f"operation{where(place, '; the longest gap ends with this line')}",
        cost_ns=cost_ns,
        cost_of="GPU idle in these intervals",
        place=place,
        rows=late,
        weight=after_ns,
        remedy=REMEDY,
    )


RULE = Rule(
    "low_utilisation",
    "When is a GPU mostly idle?",
    (CHUNKS, LOW, ENOUGH, WORTH),
    check,
    __doc__ or "",
    time=Time.IDLE,
    symptom=True,
    wins_frac=0.7,
)
