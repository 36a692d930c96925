# SPDX-License-Identifier: Apache-2.0
"""Time intervals per process, and the window of a trace."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, unique

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Spans:
    """Time intervals, sorted by process and start. Those of one process are disjoint and not empty."""

    process: I32
    start_ns: I64
    end_ns: I64

    @classmethod
    def of(cls, process: I32, start_ns: I64, end_ns: I64) -> Spans:
        """The union of intervals. Adjacent intervals stay separate."""
        kept = np.flatnonzero(end_ns > start_ns)
        order = kept[np.lexsort((start_ns[kept], process[kept]))]
        out: list[tuple[int, int, int]] = []
        for p, a, b in zip(
            process[order].tolist(), start_ns[order].tolist(), end_ns[order].tolist(), strict=True
        ):
            if out and out[-1][0] == p and out[-1][2] > a:
                out[-1] = (p, out[-1][1], max(out[-1][2], b))
            else:
                out.append((p, a, b))
        table = np.array(out, dtype=np.int64).reshape(-1, 3)
        return cls(table[:, 0].astype(np.int32), table[:, 1].copy(), table[:, 2].copy())

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def total_ns(self) -> int:
        return int((self.end_ns - self.start_ns).sum())

    def cut(self, process: I32, start_ns: I64, end_ns: I64) -> tuple[Rows, I64, I64]:
        """The parts of intervals inside the spans: row of the interval, start, end. An interval in several
        spans has several parts. An empty interval is inside the span that begins with it.
        """
        first, parts = self._met(process, start_ns, end_ns)
        row = np.repeat(np.arange(len(start_ns)), parts)
        span = np.repeat(first, parts) + np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
        return row, np.maximum(start_ns[row], self.start_ns[span]), np.minimum(end_ns[row], self.end_ns[span])

    def cut_out(self, process: I32, start_ns: I64, end_ns: I64) -> tuple[Rows, I64, I64]:
        """The parts of intervals outside of the spans: row of the interval, start, end. None is empty."""
        row, opens, closes = self.cut(process, start_ns, end_ns)
        # Between an interval's start, the spans inside it, and its end.
        every = np.arange(len(start_ns))
        before = np.lexsort((np.concatenate([start_ns, closes]), np.concatenate([every, row])))
        after = np.lexsort((np.concatenate([opens, end_ns]), np.concatenate([row, every])))
        rows = np.concatenate([every, row])[before]
        begins, ends = np.concatenate([start_ns, closes])[before], np.concatenate([opens, end_ns])[after]
        kept = ends > begins
        return rows[kept], begins[kept], ends[kept]

    def touch(self, process: I32, start_ns: I64, end_ns: I64) -> npt.NDArray[np.bool_]:
        """Per interval, whether any part of it is inside a span."""
        return np.asarray(self._met(process, start_ns, end_ns)[1] > 0)

    def hold(self, process: I32, start_ns: I64, end_ns: I64) -> npt.NDArray[np.bool_]:
        """Per interval, whether all of it is inside a span."""
        row, start, end = self.cut(process, start_ns, end_ns)
        inside = np.zeros(len(start_ns), dtype=np.int64)
        np.add.at(inside, row, end - start)
        whole: npt.NDArray[np.bool_] = inside == end_ns - start_ns
        return whole & self.touch(process, start_ns, end_ns)

    def intersect(self, other: Spans) -> Spans:
        row, start_ns, end_ns = other.cut(self.process, self.start_ns, self.end_ns)
        return Spans.of(self.process[row], start_ns, end_ns)

    def _met(self, process: I32, start_ns: I64, end_ns: I64) -> tuple[Rows, Rows]:
        """Per interval the first overlapping span, and the number of overlapping spans."""
        first = np.zeros(len(start_ns), dtype=np.intp)
        parts = np.zeros(len(start_ns), dtype=np.intp)
        for number in unique(self.process).tolist():
            begin, end = np.searchsorted(self.process, [number, number + 1])
            rows = np.flatnonzero(process == number)
            opens, closes = self.start_ns[begin:end], self.end_ns[begin:end]
            at = np.searchsorted(closes, start_ns[rows], side="right")
            until = np.maximum(
                np.searchsorted(opens, end_ns[rows], side="left"),
                np.searchsorted(opens, start_ns[rows], side="right"),
            )
            first[rows], parts[rows] = begin + at, np.maximum(until - at, 0)
        return first, parts


@dataclass(frozen=True, slots=True)
class Window:
    """The selected part of a trace."""

    text: str
    """as text: `step 3 of 6 (ProfilerStep#5); rank 1`"""
    asked: tuple[tuple[str, str], ...]
    """the options that select it, without dashes"""
    host: Spans
    """the times that select host events"""
    gpu: Spans
    """the times that select GPU operations, because the work of a step or range runs after its launch"""
    devices: tuple[int, ...]
    """CUDA ordinals, () for all"""


@dataclass(frozen=True, slots=True)
class Pauses:
    """The pauses of a recording: with a schedule it records windows and nothing in between."""

    spans: Spans
    """from the end of each window to the start of the next, for each process"""
    step_starts_ns: I64
    """starts of windows that begin with a step"""

    @classmethod
    def none(cls) -> Pauses:
        times, numbers = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        return cls(Spans(numbers, times, times), times)
