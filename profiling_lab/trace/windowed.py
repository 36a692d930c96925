# SPDX-License-Identifier: Apache-2.0
"""A part of a trace that every analysis takes for a trace."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from profiling_lab.errors import NotEnoughDataError
from profiling_lab.trace.attribution import Attribution
from profiling_lab.trace.columns import I32, Calls, Operations, Overheads, Ranges, full
from profiling_lab.trace.nsys.calls import CallTable
from profiling_lab.trace.spans import Rows, Window
from profiling_lab.trace.trace import Trace

_Table = TypeVar("_Table", Operations, Calls, Ranges, Overheads, Attribution)


class WindowedTrace(Trace):
    """What of `whole` lies in a window. Stacks and attribution are those of the whole trace: the forward
    lines of backward kernels may lie outside.

    Operations count with the part that lies inside; one that reaches over several parts of the window is
    there several times. Calls and ranges are there as they are, if any part is inside, and besides them the
    calls that launched operations of the window and the ranges around those: `calls_inside` and
    `ranges_inside` tell them apart.

    Raises NotEnoughDataError if no GPU operation lies in the window.
    """

    def __init__(self, whole: Trace, window: Window) -> None:
        super().__init__(whole.source)
        self._whole = whole
        self.window = window
        self.repairs = whole.repairs
        if not len(self.operations):
            raise NotEnoughDataError(self.why_empty())

    @property
    def whole(self) -> Trace:
        return self._whole

    @cached_property
    def _operation_parts(self) -> tuple[Rows, Operations]:
        """Rows of the whole trace, and the parts of them that are inside."""
        operations, window = self.whole.operations, self._of_window
        row, start_ns, end_ns = window.gpu.cut(operations.process, operations.start_ns, operations.end_ns)
        if window.devices:
            kept = np.isin(operations.device[row], window.devices)
            row, start_ns, end_ns = row[kept], start_ns[kept], end_ns[kept]
        order = np.argsort(row, kind="stable")
        row = row[order]
        parts = replace(_rows_of(operations, row), start_ns=start_ns[order], end_ns=end_ns[order])
        return row, parts

    @property
    def _of_window(self) -> Window:
        assert self.window is not None
        return self.window

    @cached_property
    def operations(self) -> Operations:
        return self._operation_parts[1]

    @property
    def operation_rows(self) -> Rows:
        return self._operation_parts[0]

    @property
    def range_rows(self) -> Rows:
        return self._range_rows[0]

    @cached_property
    def _call_rows(self) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """Rows of the whole trace's calls that are kept, and which of them are inside."""
        calls, found = self.whole.calls, self.whole.attribution
        inside = self._of_window.host.touch(calls.process, calls.start_ns, calls.end_ns)
        launching = found.call[self._operation_parts[0]]
        launches = np.zeros(len(calls), dtype=bool)
        launches[launching[launching >= 0]] = True
        if self._of_window.devices:
            # What was launched on other devices only is no part of this.
            other = found.call[~np.isin(self.whole.operations.device, self._of_window.devices)]
            elsewhere = np.zeros(len(calls), dtype=bool)
            elsewhere[other[other >= 0]] = True
            inside &= ~elsewhere | launches
        rows = np.flatnonzero(inside | launches)
        return rows, inside[rows]

    @cached_property
    def _call_table(self) -> CallTable:
        whole = self.whole._call_table
        return replace(whole, calls=_rows_of(whole.calls, self._call_rows[0]))

    @property
    def calls_inside(self) -> npt.NDArray[np.bool_]:
        return self._call_rows[1]

    @cached_property
    def _range_rows(self) -> tuple[Rows, npt.NDArray[np.bool_]]:
        ranges = self.whole.ranges
        inside = self._of_window.host.touch(ranges.process, ranges.start_ns, ranges.end_ns)
        around = self.whole.attribution.range[self._operation_parts[0]]
        needed = inside.copy()
        needed[around[around >= 0]] = True
        rows = np.flatnonzero(needed)
        return rows, inside[rows]

    @cached_property
    def ranges(self) -> Ranges:
        return _rows_of(self.whole.ranges, self._range_rows[0])

    @property
    def ranges_inside(self) -> npt.NDArray[np.bool_]:
        return self._range_rows[1]

    @cached_property
    def overheads(self) -> Overheads:
        whole = self.whole.overheads
        return _rows_of(whole, self._of_window.host.touch(whole.process, whole.start_ns, whole.end_ns))

    @cached_property
    def attribution(self) -> Attribution:
        found = _rows_of(self.whole.attribution, self._operation_parts[0])
        return replace(
            found,
            call=_renumbered(found.call, self._call_rows[0], len(self.whole.calls)),
            range=_renumbered(found.range, self._range_rows[0], len(self.whole.ranges)),
        )

    def why_empty(self) -> str:
        """The sentence for a window without any GPU operation."""
        if not len(self.whole.operations):
            return self.whole.why_empty()
        operations, zero = self.whole.operations, self.first_ns
        first, last = (int(t) - zero for t in (operations.start_ns.min(), operations.end_ns.max()))
        return (
            f"{self.path} has no GPU operation in this window ({self._of_window.text}); the recording has "
            f"{len(operations):,} of them, from {first / 1e9:.6f}s to {last / 1e9:.6f}s"
        )


def _rows_of(table: _Table, rows: npt.NDArray[Any]) -> _Table:
    """Some rows of a table: its arrays are its columns."""
    columns = {field.name: getattr(table, field.name) for field in fields(table)}
    return replace(
        table, **{n: column[rows] for n, column in columns.items() if isinstance(column, np.ndarray)}
    )


def _renumbered(old: I32, rows: Rows, size: int) -> I32:
    """Row numbers of the whole table as row numbers of its `rows`; -1 stays."""
    number = full(size + 1, -1, np.int32)
    number[rows] = np.arange(len(rows), dtype=np.int32)
    return np.asarray(number[old], dtype=np.int32)
