# SPDX-License-Identifier: Apache-2.0
"""Parts of graphs: cut out of the graph of one process, and joined to one graph of several ranks.

In the graph of one process a collective takes as long as its kernel did. Joined, it is a meeting: it begins
when the last rank has come, and ends for each rank a transfer later. So what one rank does sooner, all others
have sooner too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.critical_path.graph import NO_LABEL, Graph, GraphBuilder, Parts, Site
from profiling_lab.analysis.critical_path.kinds import Kind
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I32, I64, full, unique

_BEHIND_ALL = 1 << 40
"""the order of a meeting among what comes at the same time"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Of one process, from one time to another. Dependencies on what is outside are not in it: what has no
    other comes when it came.
    """

    time_ns: I64
    source: I64
    target: I64
    after_ns: I64
    owner: I64
    parts: Parts
    sites: tuple[Site, ...]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.time_ns)

    def moved(self, to: Callable[[I64], I64]) -> Piece:
        """On another clock. Where that one runs slower, what a dependency takes is shorter there."""
        time_ns = to(self.time_ns)
        passed = time_ns[self.target] - time_ns[self.source]
        return replace(self, time_ns=time_ns, after_ns=np.minimum(self.after_ns, passed))

    def collectives(self) -> I64:
        """The dependencies that are collectives: from the begin of the kernel to its end."""
        return unique(self.parts.edge[self.parts.kind == Kind.COLLECTIVE]).astype(np.int64)


def cut(graph: Graph, process: int, first_ns: int, last_ns: int) -> tuple[Piece, I64]:
    """A piece, and per moment of the graph its row in it, -1 for what is not in it."""
    inside = (graph.process == process) & (graph.time_ns >= first_ns) & (graph.time_ns <= last_ns)
    row = full(len(graph.time_ns), -1)
    row[inside] = np.arange(int(inside.sum()))
    target = np.repeat(np.arange(len(graph.time_ns)), np.diff(graph.first))
    kept = np.flatnonzero(inside[graph.source] & inside[target])
    edge: I64 = full(len(target), -1)
    edge[kept] = np.arange(len(kept))
    parts = graph.parts
    mine = np.flatnonzero(edge[parts.edge] >= 0)
    owner = graph.owner[kept].astype(np.int64)
    sites, numbers = _used(np.concatenate([parts.site[mine], owner]), len(graph.sites))
    labels, names = _used(parts.label[mine].astype(np.int64), len(graph.labels))
    return Piece(
        time_ns=graph.time_ns[inside],
        source=row[graph.source[kept]],
        target=row[target[kept]],
        after_ns=graph.after_ns[kept],
        owner=sites[owner],
        parts=Parts(
            edge=edge[parts.edge[mine]].astype(np.int32),
            ns=parts.ns[mine],
            kind=parts.kind[mine],
            site=sites[parts.site[mine]].astype(np.int32),
            label=labels[parts.label[mine]].astype(np.int32),
        ),
        sites=tuple(graph.sites[number] for number in numbers),
        labels=tuple(graph.labels[number] for number in names),
    ), row


def _used(values: I64, size: int) -> tuple[I64, list[int]]:
    """New numbers for those in use (the last one is for -1), and which those are."""
    used = unique(values[values >= 0])
    new = full(size + 1, -1)
    new[used] = np.arange(len(used))
    return new, used.tolist()


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective of several ranks."""

    piece: tuple[int, ...]
    edge: tuple[int, ...]
    """of each piece, one of its `collectives`"""


@dataclass(frozen=True, slots=True)
class Joined:
    """The graph of several pieces; its processes are their numbers."""

    graph: Graph
    place: tuple[I64, ...]
    """per piece and moment the moment of the graph"""
    transfers: npt.NDArray[np.intp]
    """the parts that are the transfers of meetings"""


def join(pieces: Sequence[Piece], meetings: Sequence[Meeting]) -> Joined:
    """One graph of all, whose times are those of one clock.

    A meeting whose ranks did not all come before the first left is none: its operations stay as they were.
    """
    builder = GraphBuilder()
    times = [piece.time_ns for piece in pieces]
    moments = [
        builder.moments(time_ns, number, np.arange(len(time_ns))) for number, time_ns in enumerate(times)
    ]
    real: list[tuple[Meeting, int]] = []
    removed = [np.zeros(len(piece.source), dtype=bool) for piece in pieces]
    for meeting in meetings:
        pairs = list(zip(meeting.piece, meeting.edge, strict=True))
        last = max(int(times[p][pieces[p].source[e]]) for p, e in pairs)
        if last < min(int(times[p][pieces[p].target[e]]) for p, e in pairs):
            real.append((meeting, last))
            for p, e in pairs:
                removed[p][e] = True
    shared = [_add(builder, piece, moments[number], removed[number]) for number, piece in enumerate(pieces)]
    at = np.array([last for _, last in real], dtype=np.int64)
    met = builder.moments(at, [meeting.piece[0] for meeting, _ in real], _BEHIND_ALL)
    rows = [
        (number, piece, edge)
        for number, (meeting, _) in enumerate(real)
        for piece, edge in zip(meeting.piece, meeting.edge, strict=True)
    ]
    for number, piece in enumerate(pieces):
        mine = np.array([(m, e) for m, p, e in rows if p == number], dtype=np.int64).reshape(-1, 2)
        where, edge = met[mine[:, 0]], mine[:, 1]
        source, target = piece.source[edge], piece.target[edge]
        builder.edges(moments[number][source], where, np.zeros(len(edge), dtype=np.int64))
        took = times[number][target] - at[mine[:, 0]]
        site, label = shared[number]
        part: I64 = full(len(piece.source), -1)
        part[piece.parts.edge[::-1]] = np.arange(len(piece.parts.edge))[::-1]
        of = part[edge]
        transfer = builder.edges(where, moments[number][target], took)
        builder.parts(transfer, took, Kind.COLLECTIVE, site[of], label[of])
    none = np.empty(0, dtype=np.int64)
    graph = builder.build((none, none), {})
    begins = graph.source[graph.parts.edge]
    transfers = np.flatnonzero(np.isin(begins, builder.place[met]))
    return Joined(graph, tuple(builder.place[rows] for rows in moments), transfers)


def _add(
    builder: GraphBuilder, piece: Piece, moments: I64, removed: npt.NDArray[np.bool_]
) -> tuple[I64, I64]:
    """The dependencies of a piece; the numbers of the sites and labels of its parts."""
    sites = np.array([*(builder.sites.number(site) for site in piece.sites), -1], dtype=np.int64)
    labels = np.array([*builder.labels.numbers(piece.labels)[: len(piece.labels)], NO_LABEL], dtype=np.int64)
    parts = piece.parts
    site, label = sites[parts.site], labels[parts.label]
    kept = np.flatnonzero(~removed)
    edge = full(len(removed), -1)
    edge[kept] = builder.edges(
        moments[piece.source[kept]],
        moments[piece.target[kept]],
        piece.after_ns[kept],
        sites[piece.owner[kept]],
    )
    rows = np.flatnonzero(~removed[parts.edge])
    builder.parts(edge[parts.edge[rows]], parts.ns[rows], parts.kind[rows], site[rows], label[rows], rows)
    return site, label


def process_of_parts(graph: Graph) -> I32:
    """Per part the process in whose time it lies."""
    return graph.process[graph.targets(graph.parts.edge)]
