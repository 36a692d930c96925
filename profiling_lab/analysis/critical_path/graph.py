# SPDX-License-Identifier: Apache-2.0
"""The graph of what waited for what: moments, dependencies between them, and what their time is made of.

Moments are the begins and ends of calls and of GPU operations. A dependency says how long after its source a
moment came, or could have come. Its time is made of parts, each with its kind and line. Ranks of a job are
joined in one graph by pieces.py.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, full
from profiling_lab.trace.stacks import Frame

NO_LABEL = -1
OPERATION_ENDS, CALL_ENDS, _BEGIN = range(3)
"""the order of what happens at one moment"""


@dataclass(frozen=True, slots=True)
class Site:
    """A line of user code, or what is known instead."""

    frame: Frame | None
    text: str
    """where there is no line: why, and what is known; '' where there is one"""
    between: tuple[Frame, Frame] | None = None
    """the lines that host code without one lies between"""

    @property
    def key(self) -> str:
        return f"{self.frame.file}:{self.frame.line}" if self.frame else self.text


class Sites:
    """Numbers lines, equal ones equally."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.sites: list[Site] = []

    def number(self, site: Site) -> int:
        number = self._numbers.setdefault(site.key, len(self.sites))
        if number == len(self.sites):
            self.sites.append(site)
        return number


class Labels:
    """Numbers the names of calls and operations."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def numbers(self, names: tuple[str, ...]) -> I32:
        table = self._numbers
        return np.array([table.setdefault(name, len(table)) for name in names] or [0], dtype=np.int32)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._numbers)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the time of dependencies is made of, in their order and in that of time."""

    edge: I32
    """row of the graph's dependencies"""
    ns: I64
    kind: I32
    site: I32
    """row of Graph.sites"""
    label: I32
    """row of Graph.labels, -1 none"""


@dataclass(frozen=True, slots=True)
class Graph:
    """Moments in order of time, each behind all it depends on."""

    time_ns: I64
    process: I32
    first: I64
    """per moment its first dependency, and behind the last moment their number"""
    source: I32
    after_ns: I64
    late_ns: I64
    """per moment: how much later than its dependencies allow it came, for reasons that are unknown"""
    owner: I32
    """per dependency the line whose wait it is, -1: not a wait"""
    parts: Parts
    sites: tuple[Site, ...]
    labels: tuple[str, ...]
    begins: I32
    """the begins of GPU operations, in order"""
    ends: I32
    main_moments: dict[int, I32]
    """per process the moments of the thread that launches most, in order of time"""

    def targets(self, edges: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.intp]:
        """The moments that these dependencies lead to."""
        return np.searchsorted(self.first, edges, "right") - 1

    def schedule(self, after_ns: I64 | None = None, late_ns: I64 | None = None) -> tuple[I64, I32]:
        """When each moment comes, and the dependency that decides; as recorded without changes."""
        return _analysis.schedule(
            self.first,
            self.source,
            self.after_ns if after_ns is None else after_ns,
            self.late_ns if late_ns is None else late_ns,
            self.time_ns,
        )


@dataclass(slots=True)
class _Table:
    """Rows that are collected in pieces."""

    columns: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    rows: int = 0

    def add(self, size: int, **columns: Any) -> None:
        self.rows += size
        for name, values in columns.items():
            values = np.broadcast_to(np.asarray(values, dtype=np.int64), (size,))
            self.columns.setdefault(name, []).append(values)

    def column(self, name: str) -> I64:
        pieces = self.columns.get(name)
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)


class GraphBuilder:
    """Collects moments, dependencies and parts, in any order; `build` sorts them."""

    def __init__(self) -> None:
        self._moments = _Table()
        self._edges = _Table()
        self._parts = _Table()
        self.sites = Sites()
        self.labels = Labels()
        self.nowhere = self.sites.number(Site(None, "no line"))
        self.place = np.empty(0, dtype=np.int64)
        """per moment its row in the graph, once that is built"""

    def spans(self, start_ns: I64, end_ns: I64, process: I32, rank: int) -> tuple[I64, I64]:
        """Moments for the begins and the ends of things; at one moment ends of a lower `rank` come first."""
        size, first = len(start_ns), self._moments.rows
        # At one moment: what lasted ends, then things begin, and end where they took no time.
        order = np.where(end_ns > start_ns, rank, _BEGIN)
        thing = np.arange(first, first + size)
        self._moments.add(size, time_ns=start_ns, process=process, order=_BEGIN, thing=thing, ends=0)
        self._moments.add(size, time_ns=end_ns, process=process, order=order, thing=thing, ends=1)
        return np.arange(first, first + size), np.arange(first + size, first + 2 * size)

    def moments(self, time_ns: I64, process: Any, order: Any) -> I64:
        """Moments alone; at one time those of a lower `order` come first."""
        first, size = self._moments.rows, len(time_ns)
        self._moments.add(size, time_ns=time_ns, process=process, order=order, thing=0, ends=0)
        return np.arange(first, first + size)

    def edges(self, source: I64, target: I64, after_ns: I64, owner: Any = -1) -> I64:
        """Dependencies; their rows, for parts."""
        first, size = self._edges.rows, len(source)
        self._edges.add(size, source=source, target=target, after_ns=after_ns, owner=owner)
        return np.arange(first, first + size)

    def parts(
        self, edge: I64, ns: I64, kind: Any, site: Any, label: Any = NO_LABEL, start_ns: Any = 0
    ) -> None:
        """What edges are made of: those of one edge sum to its time. They are sorted by `start_ns`."""
        size = len(edge)
        self._parts.add(size, edge=edge, ns=ns, kind=kind, site=site, label=label, start_ns=start_ns)

    def time_ns(self) -> I64:
        return self._moments.column("time_ns")

    def build(self, operations: tuple[I64, I64], main: dict[int, I64]) -> Graph:
        """operations: the moments of their begins and ends. main: moments by process."""
        time_ns = self.time_ns()
        moments = len(time_ns)
        keys = (self._moments.column(name) for name in ("ends", "thing", "order"))
        order = np.lexsort((*keys, time_ns))
        place = np.empty(moments, dtype=np.int64)
        place[order] = np.arange(moments)
        self.place = place
        source, target = place[self._edges.column("source")], place[self._edges.column("target")]
        # What would come before its source is no dependency: clocks of host and GPU differ a little.
        kept = np.flatnonzero(source < target)
        kept = kept[np.argsort(target[kept], kind="stable")]
        source, target = source[kept], target[kept]
        after_ns, owner = self._edges.column("after_ns")[kept], self._edges.column("owner")[kept]
        new_row = full(self._edges.rows, -1)
        new_row[kept] = np.arange(len(kept))
        first = np.zeros(moments + 1, dtype=np.int64)
        np.cumsum(np.bincount(target, minlength=moments), out=first[1:])
        at_ns = time_ns[order]
        ready_ns = full(moments, np.iinfo(np.int64).min)
        np.maximum.at(ready_ns, target, at_ns[source] + after_ns)
        late_ns = np.where(first[1:] > first[:-1], at_ns - ready_ns, 0)
        assert not (late_ns < 0).any(), "a dependency is longer than what was recorded"
        edge = new_row[self._parts.column("edge")]
        ns = self._parts.column("ns")
        rows = np.flatnonzero((edge >= 0) & (ns != 0))
        rows = rows[np.lexsort((self._parts.column("start_ns")[rows], edge[rows]))]

        def part(name: str) -> I32:
            return self._parts.column(name)[rows].astype(np.int32)

        return Graph(
            time_ns=at_ns,
            process=self._moments.column("process")[order].astype(np.int32),
            first=first,
            source=source.astype(np.int32),
            after_ns=np.ascontiguousarray(after_ns),
            late_ns=np.ascontiguousarray(late_ns),
            owner=owner.astype(np.int32),
            parts=Parts(edge[rows].astype(np.int32), ns[rows], part("kind"), part("site"), part("label")),
            sites=tuple(self.sites.sites),
            labels=self.labels.names,
            begins=np.sort(place[operations[0]]).astype(np.int32),
            ends=np.sort(place[operations[1]]).astype(np.int32),
            main_moments={process: np.sort(place[rows]).astype(np.int32) for process, rows in main.items()},
        )
