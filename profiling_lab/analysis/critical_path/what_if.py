# SPDX-License-Identifier: Apache-2.0
"""What if a line, a kernel or a kind of work took less or more time: the graph again, with other times.

All that depends on it moves, and what now decides instead may be something else: this is why the gain is
seldom what the line took. At 0 a line is gone, with its waits. What recording took of a program is gone in
all of these: a change is to win something where nothing is recorded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.critical_path.graph import Graph
from profiling_lab.analysis.critical_path.kinds import KINDS, Kind
from profiling_lab.analysis.critical_path.walk import StepsFound
from profiling_lab.errors import UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, unique

_GONE_NS = -(1 << 60)
_WAITS = (Kind.WAIT, Kind.EVENT_WAIT)
_GPU_WORK = (Kind.KERNEL, Kind.COLLECTIVE, Kind.COPY, Kind.SET, Kind.GRAPH)
_LINE = re.compile(r"(?P<file>.+\.\w+):(?P<line>\d+)")


@dataclass(frozen=True, slots=True)
class Change:
    """`model.py:87=0.5`: something, and the factor of its time."""

    target: str
    factor: float

    def __str__(self) -> str:
        return f"{self.target}={self.factor:g}"


@dataclass(frozen=True, slots=True)
class Touched:
    """What a change is about."""

    parts: npt.NDArray[np.intp]
    """rows of the graph's parts"""
    waits: npt.NDArray[np.intp]
    """dependencies that are gone where it takes no time at all"""


def parse(text: str) -> Change:
    """Raises UsageError for what is no change."""
    target, _, factor = text.rpartition("=")
    try:
        value = float(factor)
    except ValueError:
        value = math.nan
    if not target.strip() or not 0 <= value < math.inf:
        raise UsageError(
            "expected LINE=FACTOR, such as model.py:87=0.5 (or a kernel's name, or a kind: copy=0), or all, "
            f"not {text}"
        )
    return Change(target.strip(), value)


def touched(graph: Graph, target: str) -> Touched:
    """What a line, a kind of work, or a pattern for names of kernels and calls is about.

    Raises UsageError if it is nothing.
    """
    kinds = {name: kind for kind, name in KINDS.items() if kind != Kind.PROFILER}
    if target in kinds:
        return _of_kind(graph, kinds[target])
    line = _LINE.fullmatch(target)
    sites = [
        number
        for number, site in enumerate(graph.sites)
        if site.key == target
        or (
            line is not None
            and site.frame is not None
            and site.frame.line == int(line["line"])
            and f"/{site.frame.file}".endswith(f"/{line['file'].removeprefix('./')}")
        )
    ]
    if sites:
        return of_sites(graph, sites)
    found = _of_names(graph, target) if line is None else np.empty(0, dtype=np.intp)
    if not len(found):
        raise UsageError(
            f"{target} is no line, no kind of work and no name of a kernel in this trace; {_known(graph)}"
        )
    return Touched(found, np.empty(0, dtype=np.intp))


def of_sites(graph: Graph, sites: list[int]) -> Touched:
    return Touched(
        np.flatnonzero(np.isin(graph.parts.site, sites)), np.flatnonzero(np.isin(graph.owner, sites))
    )


def _of_kind(graph: Graph, kind: Kind) -> Touched:
    parts = np.flatnonzero(graph.parts.kind == kind)
    waits = graph.parts.edge[parts] if kind in _WAITS else np.empty(0, dtype=np.int32)
    waits = waits[graph.owner[waits] >= 0]
    return Touched(parts, np.asarray(waits, dtype=np.intp))


def _of_names(graph: Graph, pattern: str) -> npt.NDArray[np.intp]:
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--what-if expects a regular expression, not {pattern!r}: {error}") from None
    named = [number for number, name in enumerate(graph.labels) if wanted.search(name)]
    return np.flatnonzero(np.isin(graph.parts.label, named))


def _known(graph: Graph) -> str:
    """The lines with most time, and the kinds."""
    ns = np.bincount(graph.parts.site, weights=graph.parts.ns, minlength=len(graph.sites))
    lines = [graph.sites[i] for i in np.argsort(-ns, kind="stable").tolist()]
    names = [f"{s.frame.file.rpartition('/')[2]}:{s.frame.line}" for s in lines if s.frame is not None]
    used = [KINDS[Kind(kind)] for kind in unique(graph.parts.kind).tolist() if kind != Kind.PROFILER]
    said = f"lines are {', '.join(names[:4])}; " if names else ""
    return f"{said}kinds are {', '.join(used)}"


def predicted(graph: Graph, found: StepsFound, changes: Sequence[tuple[Touched, float]]) -> I64:
    """How long each step would be with all of these changes."""
    return np.maximum(found.lengths(changed(graph, changes)), 0)


def changed(graph: Graph, changes: Sequence[tuple[Touched, float]]) -> I64:
    """When each moment would come with all of these changes, and without the recorder."""
    left = np.where(graph.parts.kind == Kind.PROFILER, 0.0, 1.0)
    for what, factor in changes:
        left[what.parts] *= factor
    more_ns = np.rint(graph.parts.ns * (left - 1)).astype(np.int64)
    after_ns = graph.after_ns.copy()
    np.add.at(after_ns, graph.parts.edge, more_ns)
    np.maximum(after_ns, 0, out=after_ns)
    for what, factor in changes:
        if factor == 0:
            after_ns[what.waits] = _GONE_NS
    return graph.schedule(after_ns)[0]
