# SPDX-License-Identifier: Apache-2.0
"""Ranges by name: how long they took on the host, and what they were on the GPU.

The projection of a range is from the start of the first operation that was launched inside of it to the end
of the last, as in `nvtx_gpu_proj_sum` of nsys. Projections of nested ranges contain each other, so they do
not sum up to anything; the time in which the GPU worked for a range is next to it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.coverage import Coverage
from profiling_lab.analysis.places import Place, PlaceSums, covered, operation_places
from profiling_lab.analysis.ranges.open import OpenRanges, open_ranges
from profiling_lab.analysis.ranges.tree import Nesting, Paths, nest, paths
from profiling_lab.analysis.stats import Stats, StatsByKey
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, combined
from profiling_lab.trace.extras import Style
from profiling_lab.trace.trace import Trace

STYLES = {
    Style.PUSH_POP: "push/pop",
    Style.START_END: "start/end",
    Style.ACROSS_THREADS: "start/end",
    Style.OPERATOR: "operator",
}


@dataclass(frozen=True, slots=True)
class RangeRow:
    """All ranges of one name, domain and style; in a tree, of one name below one parent."""

    domain: str
    """'' for the default one"""
    name: str
    style: str
    parents: tuple[str, ...]
    """in a tree the names above, outermost first"""
    host: Stats
    """of the time from start to end on the host, ns; ranges without an end are left out"""
    host_self_ns: int | None
    """the same total without the ranges right below it; in a tree only"""
    nested: int
    """ranges inside of another of this row (an operator that calls its own overload, recursion): their time
    is in that of the outer one, and counts once"""
    unfinished: int
    """ranges that had no end when the recording stopped"""
    projected: Stats
    """of the time from the first to the last operation, ns; of ranges that launched any"""
    busy_ns: int
    """in which the GPU worked for the range, summed over ranges"""
    operations: int
    threads: int
    places: tuple[Place, ...]

    @property
    def title(self) -> str:
        """With its domain, as nsys prints it."""
        return f"{self.domain}:{self.name}" if self.domain else self.name

    @property
    def key(self) -> str:
        return " > ".join((*self.parents, self.title)) + f" ({self.style})"


@dataclass(frozen=True, slots=True)
class RangesResult:
    """Rows by projected GPU time, then by host time; a tree has them by host time, parents first."""

    rows: tuple[RangeRow, ...]
    coverage: Coverage
    tree: bool
    ranges: int
    nested: int
    """inside of another range of their row"""
    unfinished: int
    across_threads: int
    """ranges that end on another thread: which launches are inside is unknown"""
    not_nested: int
    """ranges that overlap others of their domain: a tree has no place for them"""
    domains: tuple[str, ...]
    total_matched: int

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


def ranges(
    trace: Trace,
    tree: bool = False,
    merge_numbers: bool = False,
    own: tuple[str, ...] | None = None,
    limit: int | None = None,
) -> RangesResult:
    """Sum ranges by name, or by their path of names.

    What emit_nvtx appends to a name (`, seq = 3, op_id = 17`) is not part of it. merge_numbers: names that
    differ in numbers alone (`step 1`, `step 2`) are one. own: see Ownership. limit: the most rows.

    Raises UsageError, and NotEnoughDataError if there are no ranges.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    rows = np.flatnonzero(trace.ranges_inside)
    if not len(rows):
        raise NotEnoughDataError(f"{trace.path} holds no range: {_why_none(trace)}")
    own_row, coverage = covered(trace, own)
    found = open_ranges(trace, rows, merge_numbers)
    nesting = nest(
        found.start_ns,
        found.end_ns,
        found.thread,
        found.domain,
        found.style,
        found.launched.call_start_ns,
        found.launched.call_thread,
    )
    label, labels = combined(found.domain, found.name, found.style)
    names = [_Label(trace.ranges.domains, found.names, *values) for values in labels]
    everything = Paths(label, (-1,) * len(labels), tuple(range(len(labels))))
    group = paths(label, nesting.parent) if tree else everything
    # In a tree the inner range has a path, thus a row of its own. Ranges that are started and ended need not
    # be calls: one inside of another is another piece of work.
    calls = np.isin(found.style, (Style.PUSH_POP, Style.OPERATOR))
    nested = np.zeros(len(rows), dtype=bool) if tree else calls & nesting.inside_its_own(label, found.closed)
    sums = _sums(found, group, nested)
    titles = [names[number].title for number in group.label]
    if tree:
        weight = group.at_least_below(sums.host.total)
        ranked = sorted(range(len(group)), key=lambda i: (-int(weight[i]), i))
        shown = group.depth_first(set(ranked[:limit]), weight)
    else:
        ranked = sorted(
            range(len(group)),
            key=lambda i: (-int(sums.projected.total[i]), -int(sums.host.total[i]), titles[i]),
        )
        shown = ranked[:limit]
    outermost = np.where(nested, np.int32(-1), group.number)
    places = _places(trace, own_row, found, nesting, outermost, shown)
    below = group.sum_below(sums.host.total)
    out = tuple(
        RangeRow(
            domain=names[group.label[i]].domain,
            name=names[group.label[i]].name,
            style=names[group.label[i]].style,
            parents=tuple(titles[above] for above in group.of(i)[:-1]),
            host=sums.host[i],
            host_self_ns=max(int(sums.host.total[i] - below[i]), 0) if tree else None,
            nested=int(sums.nested[i]),
            unfinished=int(sums.ranges[i] - sums.nested[i] - sums.host.count[i]),
            projected=sums.projected[i],
            busy_ns=int(sums.busy[i]),
            operations=int(sums.operations[i]),
            threads=int(sums.threads[i]),
            places=places[i],
        )
        for i in shown
    )
    return RangesResult(
        rows=out,
        coverage=coverage,
        tree=tree,
        ranges=len(rows),
        nested=int(nested.sum()),
        unfinished=int((~found.closed).sum()),
        across_threads=int((found.style == Style.ACROSS_THREADS).sum()),
        not_nested=nesting.dropped,
        domains=tuple(sorted({name.domain for name in names} - {""})),
        total_matched=len(group),
    )


class _Label:
    """Domain, name and style of a row."""

    def __init__(
        self, domains: dict[int, str], names: tuple[str, ...], domain: int, name: int, style: int
    ) -> None:
        self.domain = domains.get(domain, f"domain {domain}" if domain else "")
        self.name = names[name]
        self.style = STYLES[Style(style)]
        self.title = f"{self.domain}:{self.name}" if self.domain else self.name


@dataclass(frozen=True, slots=True)
class _Sums:
    """Columns with a row per group."""

    ranges: I64
    nested: I64
    host: StatsByKey
    projected: StatsByKey
    busy: I64
    operations: I64
    threads: I64


def _sums(found: OpenRanges, group: Paths, nested: npt.NDArray[np.bool_]) -> _Sums:
    """`nested`: ranges whose time is in that of another range of their group."""
    key, size = group.number, len(group)
    # A range that ends elsewhere, or never, has no inside.
    inside = np.flatnonzero(found.closed & (found.style != Style.ACROSS_THREADS) & ~nested)
    launched = found.launched
    first, last, busy, count = _analysis.project(
        found.start_ns[inside],
        found.end_ns[inside],
        found.thread[inside],
        launched.call_start_ns,
        launched.call_end_ns,
        launched.call_thread,
        launched.start_ns,
        launched.end_ns,
    )
    host_ns = np.where(found.closed, found.end_ns - found.start_ns, 0)
    _, pairs = combined(key, found.thread)
    return _Sums(
        ranges=np.bincount(key, minlength=size),
        nested=np.bincount(key[nested], minlength=size),
        host=StatsByKey.of(np.where(found.closed & ~nested, key, -1), host_ns, size),
        projected=StatsByKey.of(np.where(count > 0, key[inside], -1), last - first, size),
        busy=_analysis.sum_by_key(key[inside], busy, size)[0],
        operations=_analysis.sum_by_key(key[inside], count, size)[0],
        threads=np.bincount(np.array([group for group, _ in pairs], dtype=np.int64), minlength=size),
    )


def _places(
    trace: Trace, own_row: I32, found: OpenRanges, nesting: Nesting, group: I32, shown: list[int]
) -> dict[int, tuple[Place, ...]]:
    """The lines of the operations of each group: those of a range are those of the ranges in it, too."""
    launched = found.launched
    if not len(launched.row):
        return {i: () for i in shown}
    placed = operation_places(trace, own_row)
    number, weight = placed.number[launched.row], trace.operations.duration_ns[launched.row]
    sums = PlaceSums(placed, shown)
    # As in `project`: the whole call is inside.
    until = np.where(found.closed & (found.style != Style.ACROSS_THREADS), found.end_ns, found.start_ns)
    for innermost in nesting.innermost:
        rows = np.flatnonzero(innermost >= 0)
        around = innermost[rows]
        while len(rows):
            inside = launched.call_end_ns[rows] <= until[around]
            sums.add(group[around[inside]], number[rows[inside]], weight[rows[inside]])
            around = nesting.parent[around]
            rows, around = rows[around >= 0], around[around >= 0]
    return sums.places()


def _why_none(trace: Trace) -> str:
    if trace.whole is not trace and len(trace.whole.ranges):
        return "none lies in the part that was asked for"
    reasons = {
        "nsys": "the program makes none, or nsys ran without --trace=nvtx",
        "torch.profiler": "ProfilerActivity.CPU was not among the activities",
        "XLA": "jax.profiler ran with host_tracer_level=0",
        "rocprofv3": "the program makes none, or rocprofv3 ran without --marker-trace",
    }
    return reasons.get(trace.recorder, "the program made none while it was recorded")
