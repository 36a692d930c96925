# SPDX-License-Identifier: Apache-2.0
"""In which stretches of the recording does a GPU mostly wait?

The recording is cut into equal parts; those in which the GPU works for less than half of the time are low,
and neighbouring low parts are one stretch. A finding speaks of all stretches of one GPU. Copies count as
work. A GPU that is below half over the whole recording, which TensorBoard's plugin asked for, has such a
stretch.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.finding import (
    LONGER,
    WORTH,
    Abstain,
    Finding,
    Threshold,
    Verdict,
    ms,
    percent,
    where,
)
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64

CHUNKS = Threshold(
    "chunks",
    "equal parts the recording is cut into",
    30,
    "parts",
    "ours: nsys cuts likewise, its count is unknown",
)
LOW = Threshold("low", "a GPU works", 0.5, "of a part, less than", "nsys: gpu_time_util")
ENOUGH = Threshold("enough", "operations of a GPU", 60, "at least", "ours: two for each part")
REMEDY = "see what the host does before this line: loading data, waiting, launching too many small kernels"


def check(view: View) -> Verdict:
    devices = [rows for _, _, rows in view.devices if len(rows) >= view[ENOUGH]]
    if not devices:
        return Abstain(f"no GPU has {view[ENOUGH]:.0f} operations, too few to cut them into parts", LONGER)
    return [finding for rows in devices if (finding := _of_device(view, rows))]


def _of_device(view: View, rows: I64) -> Finding | None:
    operations, process = view.operations, int(view.operations.process[rows[0]])
    busy = view.busy(rows).filled(view.unknown(process))
    if not busy.span_ns:
        return None
    parts = min(max(int(view[CHUNKS]), 1), len(rows))  # more parts than operations tell nothing
    length = (busy.end_ns[-1] - busy.start_ns[0]) // parts
    edges = busy.start_ns[0] + np.arange(parts + 1, dtype=np.int64) * length
    edges[-1] = busy.end_ns[-1]  # the last part is a little longer where the span does not divide
    idle = busy.idle_within(edges[:-1], edges[1:])
    low = 1 - idle / np.maximum(np.diff(edges), 1) < view[LOW]
    cost_ns = int(idle[low].sum())
    if not low.any() or cost_ns < view[WORTH] * view.span_ns:
        return None
    # Neighbouring parts are one stretch.
    turns = np.flatnonzero(np.diff(np.concatenate([[0], low.astype(np.int8), [0]]))).reshape(-1, 2)
    began, ended = edges[turns].T
    # The operations that the GPU waited for, and the line that launched the one it waited for longest.
    gap_start, gap_end = busy.end_ns[:-1], busy.start_ns[1:]
    stretch = np.searchsorted(ended, gap_start, "right")
    inside = np.flatnonzero((stretch < len(began)) & (gap_end > np.append(began, 0)[stretch]))
    after_ns = gap_end[inside] - gap_start[inside]
    order = rows[np.argsort(operations.start_ns[rows], kind="stable")]
    late = order[np.searchsorted(operations.start_ns[order], gap_end[inside])]
    place = view.place(int(view.operation_place[late[np.argmax(after_ns)]])) if len(late) else None
    length_ns, longest = ended - began, int((ended - began).argmax())
    several = f"in {len(turns)} stretches, the longest " if len(turns) > 1 else ""
    return view.finding(
        what=f"device {operations.device[rows[0]]}{view.of_process(process)} is busy "
        f"{percent(1 - cost_ns / int(length_ns.sum()))} of {ms(int(length_ns.sum()))}, {several}from "
        f"{ms(int(began[longest] - busy.start_ns[0]))} after its first "
        f"operation{where(place, '; the longest gap ends with this line')}",
        cost_ns=cost_ns,
        cost_of="GPU idle in these stretches",
        place=place,
        rows=late,
        weight=after_ns,
        remedy=REMEDY,
    )


RULE = Rule(
    "low_utilisation",
    "When does a GPU mostly wait?",
    (CHUNKS, LOW, ENOUGH, WORTH),
    check,
    __doc__ or "",
    time=Time.IDLE,
    symptom=True,
    wins_frac=0.7,
)
