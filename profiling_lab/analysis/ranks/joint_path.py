# SPDX-License-Identifier: Apache-2.0
"""The critical path across ranks: one graph of their launches, kernels, waits and collectives.

That a rank is last to many collectives does not say that the step is longer for it: the others may have come
early only because their hosts had nothing else to wait for. The graph runs again with what one rank takes
as it is on the others, and says how long the step would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.critical_path.graph import Graph
from profiling_lab.analysis.critical_path.kinds import (
    CUDA_CALLS,
    GPU,
    GROUP_OF_KIND,
    GROUPS,
    HOST,
    UNKNOWN,
    Kind,
)
from profiling_lab.analysis.critical_path.pieces import Meeting, join, process_of_parts
from profiling_lab.analysis.critical_path.what_if import Touched, changed
from profiling_lab.analysis.ranks.path_part import RankPart
from profiling_lab.analysis.ranks.totals import Meetings, RankComparison
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, combined, full

WORK = (GPU, HOST)
"""the groups whose time ranks are compared by; the rest is waiting, or communication"""
_PAIR_APART_NS = 20_000
"""a send and its receive end so close together"""


@dataclass(frozen=True, slots=True)
class PathShare:
    """What one line of one rank contributes to the path across ranks, per step."""

    rank: int
    line: str
    group_ns: tuple[int, ...]
    """by kinds.GROUPS"""

    @property
    def key(self) -> str:
        return f"rank {self.rank} {self.line}"

    @property
    def path_ns(self) -> int:
        return sum(self.group_ns)


class JointPath:
    """The graph of some ranks over some steps. Where a rank is asked for it is a row of `ranks`."""

    def __init__(self, parts: Sequence[RankPart], all_met: Meetings) -> None:
        self.parts = parts = sorted(parts, key=lambda part: part.rank)
        self.ranks = [part.rank for part in parts]
        common = parts[0].steps
        for part in parts[1:]:
            common = np.intersect1d(common, part.steps)
        # What the first one waited for lies before it, and is not in the pieces.
        common = common[1:] if len(common) > 2 else common
        self.steps: I64 = common
        met = [*_meetings(parts, all_met), *_pairs(parts, all_met.comparison)]
        joined = join([part.piece for part in parts], met)
        self.meetings = len(met)
        self.graph: Graph = joined.graph
        self.transfers = joined.transfers
        self._moment, self._to_ns = _bounds(parts, joined.place, common)
        self.recorded_ns = self._lengths(self.graph.time_ns)
        self.before_ns = self._lengths(changed(self.graph, ()))
        self.rank_of_part = process_of_parts(self.graph)
        # With what recording takes, which is about the same on all ranks: how much on each is less certain.
        group = np.array(GROUP_OF_KIND)[self.graph.parts.kind]
        self._work = [np.where(group == each, index, -1) for index, each in enumerate(WORK)]
        self.work_of_part = np.maximum(*self._work)
        """per part its row of WORK, -1 for what is none"""
        self.item_of_part, self.items = self._items()
        """lines; of what has none each name of a kernel or call. By item the row of the graph's sites, and of
        its labels, -1 for a line"""
        self.step_of_part = self._steps()
        """per part the step in which it ends, -1 for what lies before the first or behind the last"""
        self.work_ns = self._sums()

    @property
    def lengths(self) -> int:
        """How many steps are measured: from the begin of one to that of the next."""
        return len(self.before_ns)

    @property
    def step_ns(self) -> int:
        """The mean step, as it was recorded."""
        return int(self.recorded_ns.mean()) if len(self.recorded_ns) else 0

    @property
    def plain_step_ns(self) -> int:
        """The same without what recording takes."""
        return int(self.before_ns.mean()) if len(self.before_ns) else 0

    def _lengths(self, time_ns: I64) -> npt.NDArray[np.float64]:
        """Of each step the mean over ranks."""
        return np.asarray(np.diff(time_ns[self._moment] + self._to_ns, axis=1).mean(axis=0))

    @property
    def has_collectives(self) -> bool:
        """Whether a step has any that is recorded as such."""
        return bool((self.step_of_part[self.transfers] >= 0).any())

    @property
    def graphs_ns(self) -> int:
        """What ranks do per step in CUDA graphs that were recorded as a whole, the mean of them."""
        rows = (self.graph.parts.kind == Kind.GRAPH) & (self.step_of_part >= 0)
        return int(self.graph.parts.ns[rows].sum() // max(self.lengths * len(self.ranks), 1))

    def gains_ns(self, changes: Sequence[tuple[Touched, float]]) -> npt.NDArray[np.float64]:
        """What each step would be shorter by with these changes, none of them recorded."""
        if not changes:
            return np.zeros(self.lengths)
        return np.asarray(self.before_ns - self._lengths(changed(self.graph, changes)))

    def waits(self) -> tuple[npt.NDArray[np.int32], I64, I64]:
        """Of each collective that ranks meet in, per rank: the rank, when its part began, and when the last
        rank had come.
        """
        graph = self.graph
        met = np.unique(graph.source[graph.parts.edge[self.transfers]])
        target = graph.targets(np.arange(len(graph.source)))
        edges = np.flatnonzero(np.isin(target, met))
        begin = graph.source[edges]
        return graph.process[begin], graph.time_ns[begin], graph.time_ns[target[edges]]

    def _items(self) -> tuple[npt.NDArray[np.int32], tuple[tuple[int, ...], ...]]:
        parts, sites = self.graph.parts, self.graph.sites
        has_line = np.array([*(bool(site.frame or site.between) for site in sites), False])
        item, items = combined(parts.site, np.where(has_line[parts.site], -1, parts.label))
        return item, tuple(items)

    def line(self, item: int) -> str:
        """The line of an item, or the two that it lies between; '' for none."""
        site = self.graph.sites[self.items[item][0]]
        return site.key if site.frame or site.between else ""

    def name(self, item: int) -> str:
        """Of an item without a line, the name of its kernel or call."""
        label = self.items[item][1]
        return self.graph.labels[label] if label >= 0 else ""

    def _sums(self) -> npt.NDArray[np.float64]:
        """[rank, item, WORK] ns per step."""
        parts = self.graph.parts
        out = np.zeros((len(self.ranks), len(self.items), len(WORK)))
        rows = np.flatnonzero((self.work_of_part >= 0) & (self.step_of_part >= 0))
        where = (self.rank_of_part[rows], self.item_of_part[rows], self.work_of_part[rows])
        np.add.at(out, where, parts.ns[rows])
        return out / max(self.lengths, 1)

    def by_step(self, items: npt.NDArray[np.bool_], group: int) -> npt.NDArray[np.float64]:
        """[rank, step] ns of a group of WORK in some items. What hosts do ahead counts where they do it."""
        out = np.zeros((len(self.ranks), self.lengths))
        mine = (self.work_of_part == group) & items[self.item_of_part] & (self.step_of_part >= 0)
        rows = np.flatnonzero(mine)
        where = (self.rank_of_part[rows], self.step_of_part[rows])
        np.add.at(out, where, self.graph.parts.ns[rows])
        return out

    def _steps(self) -> I64:
        graph = self.graph
        target = graph.targets(graph.parts.edge)
        begins = graph.time_ns[self._moment] + self._to_ns
        out = full(len(graph.parts.edge), -1)
        for rank in range(len(self.ranks)):
            mine = np.flatnonzero(self.rank_of_part == rank)
            step = np.searchsorted(begins[rank], graph.time_ns[target[mine]], "right") - 1
            out[mine] = np.where(step < self.lengths, step, -1)
        return out

    def doing(self, rank: int, item: int, group: int) -> Kind | None:
        """What most of an item's time of a group is on a rank."""
        parts = self.graph.parts
        mine = (self.item_of_part == item) & (self.rank_of_part == rank) & (self.work_of_part == group)
        mine &= parts.kind != Kind.PROFILER
        rows = np.flatnonzero(mine)
        if not len(rows):
            return None
        return Kind(int(np.bincount(parts.kind[rows], weights=parts.ns[rows]).argmax()))

    @cached_property
    def _path(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.intp]]:
        """The dependencies that decide, from the end of the last step back to the begin of the first; and
        their parts.
        """
        graph = self.graph
        time_ns, decided_by = graph.schedule()
        begins = time_ns[self._moment] + self._to_ns
        last = int(self._moment[int(np.argmax(begins[:, -1])), -1])
        begin_ns = int(begins[:, 0].min())
        chain = np.sort(_analysis.deciding_chain(graph.source, graph.time_ns, decided_by, last, begin_ns))
        return chain, np.flatnonzero(np.isin(graph.parts.edge, chain))

    def in_calls_ns(self) -> int:
        """What of the path is calls of CUDA that nothing holds, per step."""
        parts = self.graph.parts
        rows = self._path[1]
        calls = rows[np.isin(parts.kind[rows], CUDA_CALLS)]
        return int(parts.ns[calls].sum()) // max(self.lengths, 1)

    def shares(self) -> tuple[PathShare, ...]:
        """The path of all steps together, from the end of the last back to the begin of the first."""
        graph = self.graph
        chain, on_path = self._path
        target = graph.targets(chain)
        parts = graph.parts
        sums: dict[tuple[int, int], list[int]] = {}
        rows = zip(
            self.rank_of_part[on_path].tolist(), parts.site[on_path].tolist(),
            parts.kind[on_path].tolist(), parts.ns[on_path].tolist(), strict=True,
        )  # fmt: skip
        unknown = zip(graph.process[target].tolist(), graph.late_ns[target].tolist(), strict=True)
        for rank, site, kind, ns in (*rows, *((r, -1, Kind.UNKNOWN, late) for r, late in unknown if late)):
            group = UNKNOWN if site < 0 else GROUP_OF_KIND[kind]
            sums.setdefault((rank, site), [0] * len(GROUPS))[group] += ns
        steps = max(self.lengths, 1)
        found = [
            PathShare(
                self.ranks[rank],
                graph.sites[site].key if site >= 0 else "unknown",
                tuple(ns // steps for ns in group_ns),
            )
            for (rank, site), group_ns in sums.items()
        ]
        return tuple(sorted(found, key=lambda row: (-row.path_ns, row.rank, row.line)))


def _bounds(parts: Sequence[RankPart], place: Sequence[I64], common: I64) -> tuple[I64, I64]:
    """[rank, step] the moments at which the common steps begin, and at which the last one ends, and the time
    from these to there. A step lasts until the next begins: the last one is not complete unless it is alone.
    """
    moments, to_ns = [], []
    for part, at in zip(parts, place, strict=True):
        rows = np.searchsorted(part.steps, common)
        bounds = [(part.begin, rows)]
        if len(rows) == 1:
            bounds.append((part.end, rows))
        moments.append(at[np.concatenate([each.moment[row] for each, row in bounds])])
        to_ns.append(np.concatenate([each.to_ns[row] for each, row in bounds]))
    return np.stack(moments), np.stack(to_ns)


def _meetings(parts: Sequence[RankPart], all_met: Meetings) -> list[Meeting]:
    """The collectives in which all ranks wait for the last."""
    out = []
    for series, found in all_met.of.items():
        if not series.is_together:
            continue
        real = set(found.starts.keys[found.together].tolist())
        members: dict[int, list[tuple[int, int]]] = {}
        for place, part in enumerate(parts):
            if series in part.met:
                for number, edge in zip(*(column.tolist() for column in part.met[series]), strict=True):
                    if number in real:
                        members.setdefault(number, []).append((place, edge))
        out += [_meeting(pairs) for pairs in members.values() if len(pairs) > 1]
    return out


def _meeting(pairs: Sequence[tuple[int, int]]) -> Meeting:
    return Meeting(tuple(piece for piece, _ in pairs), tuple(edge for _, edge in pairs))


def _pairs(parts: Sequence[RankPart], comparison: RankComparison) -> list[Meeting]:
    """Sends and receives: no recording says which belong together, but both end when the transfer does."""
    apart_ns = max(_PAIR_APART_NS, comparison.late_ns)
    found: list[tuple[int, int, int, int]] = []
    for number, part in enumerate(parts):
        for series, (_, edges) in part.met.items():
            if series.kind == "SendRecv":
                piece = part.piece
                ends, starts = (piece.time_ns[side[edges]] for side in (piece.target, piece.source))
                columns = (ends.tolist(), starts.tolist(), [number] * len(edges), edges.tolist())
                found += zip(*columns, strict=True)
    found.sort()
    out: list[Meeting] = []
    used: set[int] = set()
    for i, (end, start, one, edge) in enumerate(found):
        if i in used:
            continue
        for j in range(i + 1, len(found)):
            other_end, other_start, other, other_edge = found[j]
            if other_end - end > apart_ns:
                break
            if j not in used and other != one and max(start, other_start) < end:
                used |= {i, j}
                out.append(_meeting([(one, edge), (other, other_edge)]))
                break
    return out
