# SPDX-License-Identifier: Apache-2.0
"""Python call stacks as a tree: every stack is a node, its parent is the stack of the caller."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from profiling_lab import _analysis
from profiling_lab.trace.columns import I32, U8
from profiling_lab.trace.ownership import Ownership


@dataclass(frozen=True, slots=True, order=True)
class Frame:
    """One Python frame: the function, and the line that was executing."""

    function: str
    """qualified name where the recorder knows it (3.11 and newer), else the plain name"""
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


@dataclass(frozen=True, slots=True)
class Stacks:
    """All stacks of a trace. Row 0 is the empty stack."""

    parent: I32
    """the caller's row; 0 above the outermost frame"""
    frame: I32
    """row of `frames`; 0 in row 0"""
    frames: tuple[Frame, ...]

    def __len__(self) -> int:
        return len(self.parent)

    def of(self, stack: int) -> tuple[Frame, ...]:
        """The frames of a stack, innermost first."""
        out = []
        while stack > 0:
            out.append(self.frames[self.frame[stack]])
            stack = int(self.parent[stack])
        return tuple(out)

    def own_rows(self, ownership: Ownership) -> I32:
        """Per stack the row of its innermost frame that is the user's own, 0 if it has none."""
        main_string = bool(np.any((self.parent == 0) & self._is(self._string_modules())))
        own_frames = np.array([ownership.is_own(f.file, main_string) for f in self.frames], dtype=np.uint8)
        found = _analysis.nearest_marked(self._parents(), self._marks(own_frames))
        return np.maximum(found, 0)

    def passes_through(self, file_ends: tuple[str, ...], functions: tuple[str, ...] = ()) -> U8:
        """Per stack, the nearest row (itself included) whose frame lies in such a file (and function),
        else 0.
        """
        hits = np.array(
            [
                f.file.endswith(file_ends) and (not functions or f.function.split(".")[-1] in functions)
                for f in self.frames
            ],
            dtype=np.uint8,
        )
        return np.maximum(_analysis.nearest_marked(self._parents(), self._marks(hits)), 0)

    def _parents(self) -> I32:
        parents = self.parent.copy()
        parents[parents == 0] = -1
        return parents

    def _marks(self, frames: U8) -> U8:
        marks = frames[self.frame] if len(frames) else np.zeros(len(self), dtype=np.uint8)
        marks[0] = 0
        return marks

    def _string_modules(self) -> U8:
        return np.array(
            [f.file == "<string>" and f.function == "<module>" for f in self.frames], dtype=np.uint8
        )

    def _is(self, frames: U8) -> np.ndarray:
        return self._marks(frames).astype(bool)


@dataclass(slots=True)
class StackBuilder:
    """Collects stacks given as frames and numbers equal ones equally."""

    _nodes: dict[tuple[int, int], int] = field(default_factory=dict)
    _frames: dict[Frame, int] = field(default_factory=dict)

    def add(self, innermost_first: Iterable[Frame]) -> int:
        """The row of this stack, 0 for one without frames."""
        row = 0
        for frame in reversed(tuple(innermost_first)):
            number = self._frames.setdefault(frame, len(self._frames))
            row = self._nodes.setdefault((row, number), len(self._nodes) + 1)
        return row

    def build(self) -> Stacks:
        pairs = np.array([(0, 0), *self._nodes], dtype=np.int32).reshape(-1, 2)
        return Stacks(pairs[:, 0].copy(), pairs[:, 1].copy(), tuple(self._frames) or (Frame("", "", 0),))


def no_stacks() -> Stacks:
    return StackBuilder().build()
