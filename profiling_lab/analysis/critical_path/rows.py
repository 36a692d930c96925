# SPDX-License-Identifier: Apache-2.0
"""A path summed by line, and as a chain of lines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from profiling_lab.analysis.critical_path.graph import Graph, Site
from profiling_lab.analysis.critical_path.kinds import GROUP_OF_KIND, GROUPS, KINDS, Kind
from profiling_lab.analysis.critical_path.walk import Segments
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, unique
from profiling_lab.trace.stacks import Frame

NO_SITE = Site(None, "unknown")


@dataclass(frozen=True, slots=True)
class PathLine:
    """What one line contributes to the path of a step."""

    key: str
    """stable over runs of the same program"""
    site: Site
    group_ns: tuple[int, ...]
    """by kinds.GROUPS: host, GPU, collectives, waits, unknown"""
    kind_ns: dict[str, int]
    """the same by kind, the largest first"""
    path_ns: int
    share_frac: float
    """of the step"""
    gain_ns: int | None
    """what a step would gain if the line took no time, its waits included; None: not computed"""

    @property
    def frame(self) -> Frame | None:
        return self.site.frame


@dataclass(frozen=True, slots=True)
class Link:
    """A part of the path in one line."""

    number: int
    """in order of time, from 0"""
    start_ns: int
    """on the clock of the file"""
    ns: int
    site: Site
    kind_ns: dict[str, int]
    """the largest first"""
    name: str
    """the operation or call that takes most of it, '' none"""

    @property
    def frame(self) -> Frame | None:
        return self.site.frame

    @property
    def kind(self) -> str:
        return next(iter(self.kind_ns))


def site_of(graph: Graph, number: int) -> Site:
    return graph.sites[number] if number >= 0 else NO_SITE


def path_lines(graph: Graph, segments: Segments) -> list[tuple[int, PathLine]]:
    """The lines of a path by number of their site, the largest first; together they are the step."""
    total = int(segments.ns.sum())
    sites = unique(segments.site)
    kinds = len(Kind)
    row = np.searchsorted(sites, segments.site)
    ns = _sums(row * kinds + segments.kind, segments.ns, len(sites) * kinds).reshape(-1, kinds)
    of_group = np.array(GROUP_OF_KIND)
    out = []
    for number, mine in zip(sites.tolist(), ns, strict=True):
        site = site_of(graph, number)
        path_ns = int(mine.sum())
        groups = tuple(int(mine[of_group == group].sum()) for group in range(len(GROUPS)))
        share = path_ns / total if total else 0.0
        line = PathLine(site.key, site, groups, _by_kind(mine), path_ns, share, None)
        out.append((number, line))
    return sorted(out, key=lambda pair: (-pair[1].path_ns, pair[1].key))


def chain(graph: Graph, segments: Segments) -> Iterator[Link]:
    """The path in order of time; what follows in the same line is one link."""
    if not len(segments.site):
        return
    cuts = np.flatnonzero(np.diff(segments.site)) + 1
    firsts, lasts = np.concatenate([[0], cuts]), np.concatenate([cuts, [len(segments.site)]])
    ns = segments.ns
    for number, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
        site = site_of(graph, int(segments.site[first]))
        label = segments.label[first:last]
        named = np.flatnonzero(label >= 0)
        name = ""
        if len(named):
            sums = _sums(label[named], ns[first:last][named], len(graph.labels))
            name = graph.labels[int(sums.argmax())]
        yield Link(
            number=number,
            start_ns=int(segments.start_ns[first]),
            ns=int(ns[first:last].sum()),
            site=site,
            kind_ns=_by_kind(_sums(segments.kind[first:last], ns[first:last], len(Kind))),
            name=name,
        )


def _sums(key: np.ndarray, ns: I64, keys: int) -> I64:
    out = np.zeros(keys, dtype=np.int64)
    np.add.at(out, key, ns)
    return out


def _by_kind(ns: I64) -> dict[str, int]:
    order = np.argsort(-ns, kind="stable").tolist()
    return {KINDS[Kind(kind)]: int(ns[kind]) for kind in order if ns[kind]}
