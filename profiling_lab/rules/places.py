# SPDX-License-Identifier: Apache-2.0
"""Lines of the user's: each has a number, and what it launched or called has that number too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.trace import Frame, Trace
from profiling_lab.trace.columns import I32, I64, OperationKind
from profiling_lab.trace.ownership import Ownership


class Places:
    """The lines of a trace, as far as they are the user's own (see Ownership)."""

    def __init__(self, trace: Trace, own: tuple[str, ...]) -> None:
        self.trace = trace
        self._own = Ownership(own)

    def time_by_line(self) -> I64:
        """GPU time by number of the line that answers for it."""
        return _analysis.sum_by_key(
            self.operation_place, self.trace.operations.duration_ns, len(self._places[1])
        )[0]

    def kernels_by_line(self) -> tuple[I64, I64]:
        """GPU time and number of kernels by number of their line."""
        lines = len(self._places[1])
        operations = self.trace.operations
        kernels = operations.kind == OperationKind.KERNEL
        place = np.where(kernels, self.operation_place, -1).astype(np.int32)
        return _analysis.sum_by_key(place, operations.duration_ns, lines)

    @cached_property
    def _places(self) -> tuple[I32, tuple[Frame, ...]]:
        """Per frame of the trace the number of its line, and one frame for each line."""
        number: dict[tuple[str, int], int] = {}
        frames: list[Frame] = []
        of_frame = []
        for frame in self.trace.stacks.frames:
            if (frame.file, frame.line) not in number:
                number[frame.file, frame.line] = len(frames)
                frames.append(frame)
            of_frame.append(number[frame.file, frame.line])
        return np.array(of_frame, dtype=np.int32), tuple(frames)

    def place_of_stack(self, stack: I32) -> I32:
        """Per stack given the number of the line that it leads to, -1 without one."""
        stacks = self.trace.stacks
        own_row = stacks.own_rows(self._own)[stack]
        return np.where(own_row > 0, self._places[0][stacks.frame[own_row]], -1).astype(np.int32)

    @cached_property
    def operation_place(self) -> I32:
        """Per operation the number of the line that answers for it, -1 without one."""
        return self.place_of_stack(self.trace.attribution.stack)

    @cached_property
    def call_place(self) -> I32:
        return self.place_of_stack(self.trace.calls.stack)

    @cached_property
    def range_place(self) -> I32:
        return self.place_of_stack(self.trace.ranges.stack)

    def place(self, number: int) -> Frame | None:
        return self._places[1][number] if number >= 0 else None

    def dearest_place(self, rows: I64, weight: I64) -> Frame | None:
        """The line with most of the weight of these operations; `weight` is per row given."""
        parts = grouped(np.arange(len(rows)), self.operation_place[rows])
        return self.place(
            max(((int(weight[part].sum()), number) for number, part in parts), default=(0, -1))[1]
        )


def grouped(rows: npt.NDArray[np.integer], key: npt.NDArray[np.integer]) -> Iterator[tuple[int, I64]]:
    """The rows of each key; `key` is per row given."""
    if not len(rows):
        return
    order = np.argsort(key, kind="stable")
    keys, first = np.unique(key[order], return_index=True)
    for number, part in zip(keys.tolist(), np.split(rows[order], first[1:]), strict=True):
        yield number, np.asarray(part, dtype=np.int64)
