# SPDX-License-Identifier: Apache-2.0
"""The timeline as a page holds it: columns of the events, levels of detail, stacks and names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.coverage import reason_text, why_no_line
from profiling_lab.report.html.keep import KeptEvents, Mask, TimeRange, keep
from profiling_lab.report.html.lane import Lane, Lanes
from profiling_lab.report.html.packing import Packer
from profiling_lab.report.html.stack_columns import host_stack_columns, stack_columns
from profiling_lab.report.html.timeline_levels import COARSEST, Level, buckets_for, levels
from profiling_lab.rules import Event
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I32, I64, full, unique
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import LINE_PHASES

_TABLES = {"stream": "operations", "calls": "calls", "ranges": "ranges"}


class TimelinePacker:
    """Writes lanes, stacks and evidence into one payload."""

    def __init__(self, trace: Trace, own: tuple[str, ...], lanes: Lanes, kept: KeptEvents) -> None:
        self.trace, self.own, self.lanes, self.kept = trace, own, lanes, kept
        self.own_row = trace.stacks.own_rows(Ownership(own))
        self.packer = Packer()
        self._made = [self._make_levels(lane) for lane in lanes.lanes]
        # Calls are numbered over all lanes, so that an operation can name its own.
        self._call_number = full(len(trace.calls) + 1, -1)
        number = 0
        for lane, mask in self._of_kind("calls"):
            rows = lane.rows[mask]
            self._call_number[rows] = np.arange(number, number + len(rows))
            number += len(rows)

    def _of_kind(self, kind: str) -> list[tuple[Lane, Mask]]:
        pairs = zip(self.lanes.lanes, self.kept.masks, strict=True)
        return [(lane, mask) for lane, mask in pairs if lane.kind == kind]

    def head(self) -> dict[str, Any]:
        """The head of the payload; its columns are in `self.packer`."""
        self._name_number, shown, whole = self._used_names()
        used = self._used_stacks()
        number = full(len(self.trace.stacks), 0, np.int32)
        number[used] = np.arange(len(used))
        pairs = zip(self.lanes.lanes, self.kept.masks, strict=True)
        lanes = [self._lane(i, lane, mask, number) for i, (lane, mask) in enumerate(pairs)]
        return {
            "origin_ns": str(self.lanes.origin_ns),
            "span_ns": self.lanes.span_ns,
            "groups": self.lanes.groups,
            "lanes": lanes,
            "windows": self.kept.windows,
            "stacks": self._stacks(used, number),
            "host_stacks": host_stack_columns(self.packer, self.trace, self.own),
            "shapes": self.lanes.shapes,
            "names": shown,
            "whole_names": whole,
        }

    def _lane(self, number: int, lane: Lane, mask: Mask, stack_number: I32) -> dict[str, Any]:
        column = self.packer.column
        start, end = lane.start_ns[mask], lane.end_ns[mask]
        columns = {
            # Most events begin where the one before ended: the pauses are small numbers.
            "start": column(start - np.concatenate([[0], end[:-1]]) if len(start) else start, signed=True),
            "duration": column(end - start),
            "name": column(self._name_number[lane.name[mask]]),
            "tint": column(lane.tint[mask]),
            "stack": column(stack_number[lane.stack[mask]]),
        }
        for name, values in lane.more.items():
            if name == "call":
                calls = self._call_number[values[mask]]
                columns["call"] = column(np.diff(calls, prepend=0), signed=True)
            else:
                columns[name] = column(values[mask])
        return {
            "group": lane.group,
            "kind": lane.kind,
            "label": lane.label,
            "events": len(lane),
            "columns": columns,
            "levels": self._levels(number, lane),
        }

    def _levels(self, number: int, lane: Lane) -> list[dict[str, Any]]:
        column = self.packer.column
        return [
            {
                "width_ns": level.width_ns,
                "bucket": column(np.diff(level.bucket, prepend=0)),
                "busy": column(level.busy),
                "count": column(level.count),
                "name": column(self._name_number[lane.name[level.shown]]),
                "tint": column(lane.tint[level.shown]),
            }
            for level in self._made[number]
        ]

    def _make_levels(self, lane: Lane) -> list[Level]:
        buckets = buckets_for(len(lane))
        if not buckets and self.kept.windows is not None:
            buckets = COARSEST  # a lane with few events that lost some of them needs a level all the same
        return levels(lane.start_ns, lane.end_ns, self.lanes.span_ns, buckets) if buckets else []

    def _used_names(self) -> tuple[I32, list[str], dict[int, str]]:
        """Numbers of the names that the page shows, these names, and the whole of the shortened ones."""
        names = self.lanes.names
        used = np.zeros(len(names), dtype=bool)
        for lane, mask, made in zip(self.lanes.lanes, self.kept.masks, self._made, strict=True):
            used[lane.name[mask]] = True
            for level in made:
                used[lane.name[level.shown]] = True
        number = (np.cumsum(used) - 1).astype(np.int32)
        shown = [name for name, is_used in zip(names.shown, used.tolist(), strict=True) if is_used]
        whole = {int(number[i]): name for i, name in names.whole.items() if used[i]}
        return number, shown, whole

    def _used_stacks(self) -> npt.NDArray[np.intp]:
        """Rows of the stacks that a kept event or GPU time has, with all their callers; row 0 first."""
        parent = self.trace.stacks.parent
        used = np.zeros(len(parent), dtype=bool)
        used[0] = True
        for lane, mask in zip(self.lanes.lanes, self.kept.masks, strict=True):
            used[lane.stack[mask]] = True
        if len(self.trace.operations):
            used[self.trace.attribution.stack] = True
        new = np.flatnonzero(used)
        while len(new):
            callers = unique(parent[new])
            new = callers[~used[callers]].astype(np.intp)
            used[new] = True
        return np.flatnonzero(used)

    def _stacks(self, used: npt.NDArray[np.intp], number: I32) -> dict[str, Any]:
        """The tree of stacks with the GPU time of each by phase: the flame graph sums them up."""
        times, without_line = self._times(number, len(used))
        self_ns = {name: times[:, i] for i, name in enumerate(LINE_PHASES)}
        columns = stack_columns(self.packer, self.trace.stacks, used, self.own_row, self_ns)
        return columns | {"without_line": without_line}

    def _times(self, number: I32, stacks: int) -> tuple[I64, list[dict[str, Any]]]:
        """[stacks, phases]: GPU time by stack where user code launched it; the rest by reason."""
        trace, phases = self.trace, len(LINE_PHASES)
        if not len(trace.operations):
            return np.zeros((stacks, phases), dtype=np.int64), []
        found, duration = trace.attribution, trace.operations.duration_ns
        why = why_no_line(trace, self.own_row).astype(np.int64)
        reasons = int(why.max()) + 1
        row = np.where(why > 0, stacks + why, number[found.stack])
        table = np.zeros((stacks + reasons, phases), dtype=np.int64)
        np.add.at(table, (row, found.line_phase), duration)
        without = [
            {
                "number": i,
                "reason": reason_text(trace, i),
                **dict(zip(LINE_PHASES, table[stacks + i].tolist(), strict=True)),
            }
            for i in range(1, reasons)
            if table[stacks + i].any()
        ]
        return table[:stacks], without

    def places(self, events: Sequence[Sequence[Event]]) -> list[list[dict[str, Any]]]:
        """Per list of events of the trace where the page has them: lane, and row in the lane."""
        found: dict[tuple[str, int], dict[str, Any]] = {}
        wanted: dict[str, set[int]] = {}
        for event in (event for each in events for event in each):
            wanted.setdefault(event.table, set()).add(event.row)
        for number, (lane, mask) in enumerate(zip(self.lanes.lanes, self.kept.masks, strict=True)):
            table = _TABLES.get(lane.kind, "")
            rows = lane.rows[mask]
            for at in np.flatnonzero(np.isin(rows, list(wanted.get(table, ())))).tolist():
                row = int(rows[at])
                found[table, row] = {"table": table, "row": row, "lane": number, "i": at}
        return [[found[e.table, e.row] for e in each if (e.table, e.row) in found] for each in events]


def windows_by_interest(
    span_ns: int, origin_ns: int, step_start_ns: I64, step_end_ns: I64, worst: TimeRange | None
) -> list[TimeRange]:
    """Windows in the order in which a reader would miss them: the worst gap with its surroundings, then the
    slowest step, the first ones, and the rest in time.
    """
    out: list[TimeRange] = []
    if worst is not None:
        around = max(worst[1] - worst[0], span_ns // 1000)
        out.append((max(0, worst[0] - around), min(span_ns, worst[1] + around)))
    start, end = step_start_ns - origin_ns, step_end_ns - origin_ns
    if len(start) > 1:
        order = np.argsort(start, kind="stable")
        slowest = int((end - start).argmax())
        for row in [slowest, *order.tolist()]:
            out.append((max(0, int(start[row])), min(span_ns, int(end[row]))))
    return out


def choose(lanes: Lanes, wanted: list[TimeRange], at_most: int) -> KeptEvents:
    """See `keep`."""
    return keep(lanes.lanes, lanes.span_ns, wanted, at_most)
