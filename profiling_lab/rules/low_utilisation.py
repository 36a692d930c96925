# SPDX-License-Identifier: Apache-2.0
"""In which stretches of the recording does a GPU mostly wait?

The recording is cut into equal parts; those in which the GPU works for less than half of the time are low,
and neighbouring low parts are one stretch, whose share is that of all its time. Copies count as work. A GPU
that is below half over the whole recording, which TensorBoard's plugin asked for, has such a stretch.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.rule import (
    LONGER,
    WORTH,
    Abstain,
    Finding,
    Rule,
    Threshold,
    Verdict,
    ms,
    percent,
    where,
)
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
    return [finding for rows in devices for finding in _of_device(view, rows)]


def _of_device(view: View, rows: I64) -> list[Finding]:
    operations = view.operations
    busy = view.busy(rows).filled(view.unknown(int(operations.process[rows[0]])))
    if not busy.span_ns:
        return []
    parts = max(int(view[CHUNKS]), 1)
    length = (busy.end_ns[-1] - busy.start_ns[0]) // parts
    edges = busy.start_ns[0] + np.arange(parts + 1, dtype=np.int64) * length
    edges[-1] = busy.end_ns[-1]  # the last part is a little longer where the span does not divide
    idle = busy.idle_within(edges[:-1], edges[1:])
    low = 1 - idle / np.maximum(np.diff(edges), 1) < view[LOW]
    # Neighbouring parts are one stretch.
    turns = np.flatnonzero(np.diff(np.concatenate([[0], low.astype(np.int8), [0]])))
    findings = []
    for first, last in turns.reshape(-1, 2).tolist():
        began, ended = int(edges[first]), int(edges[last])
        cost_ns = int(idle[first:last].sum())
        if cost_ns < view[WORTH] * view.span_ns:
            continue
        # The operations that the GPU waited for longest, and the line that launched the first of them.
        gap = np.searchsorted(busy.start_ns, (began, ended))
        waited = np.arange(max(int(gap[0]), 1), min(int(gap[1]) + 1, len(busy.start_ns)))
        after_ns = busy.start_ns[waited] - busy.end_ns[waited - 1]
        order = rows[np.argsort(operations.start_ns[rows], kind="stable")]
        late = order[np.searchsorted(operations.start_ns[order], busy.start_ns[waited])]
        place = view.place(int(view.operation_place[late[np.argmax(after_ns)]])) if len(late) else None
        works, after = 1 - cost_ns / (ended - began), began - int(busy.start_ns[0])
        findings.append(
            view.finding(
                what=f"device {operations.device[rows[0]]} is busy {percent(works)} of {ms(ended - began)}, "
                f"from {ms(after)} after its first operation"
                f"{where(place, '; the longest gap ends with this line')}",
                cost_ns=cost_ns,
                cost_of="GPU idle in the stretch",
                place=place,
                rows=late,
                weight=after_ns,
                remedy=REMEDY,
            )
        )
    return findings


RULE = Rule(
    "low_utilisation", "When does a GPU mostly wait?", (CHUNKS, LOW, ENOUGH, WORTH), check, __doc__ or ""
)
