# SPDX-License-Identifier: Apache-2.0
"""The lines behind calls, operations, and the time of the host between two calls."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.critical_path.graph import GraphBuilder, Site
from profiling_lab.analysis.critical_path.kinds import Kind
from profiling_lab.analysis.places import Placed, call_places, operation_places
from profiling_lab.analysis.stats import StatsByKey
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, combined, full, unique
from profiling_lab.trace.extras import HostSamples
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.trace import Trace

DISPATCH_NS = 50_000
"""from Python's call of an operator to its launch no more passes: it belongs to the line of the launch"""
_ENOUGH_SAMPLES = 2
_UNLIKE = 3
"""a gap longer than this many times the median between its two lines is not like the others: start-up"""


@dataclass(frozen=True, slots=True)
class Between:
    """Times of a thread between two of its calls, or between its call and one of backward's thread."""

    thread: I32
    start_ns: I64
    end_ns: I64
    before: I32
    """call"""
    after: I32
    edge: I64


def call_sites(trace: Trace, builder: GraphBuilder, own: tuple[str, ...]) -> I32:
    """The site of each call."""
    return _sites_of(builder, call_places(trace, trace.stacks.own_rows(Ownership(own))))


def operation_sites(trace: Trace, builder: GraphBuilder, own: tuple[str, ...]) -> I32:
    return _sites_of(builder, operation_places(trace, trace.stacks.own_rows(Ownership(own))))


def stack_sites(trace: Trace, builder: GraphBuilder, own: tuple[str, ...], stack: I32) -> I32:
    """The site of each stack, -1 for one without a line."""
    own_row = trace.stacks.own_rows(Ownership(own))[stack]
    used, number = np.unique(own_row, return_inverse=True)
    frames = [trace.stacks.frames[trace.stacks.frame[row]] if row else None for row in used.tolist()]
    table = [builder.sites.number(Site(frame, "")) if frame else -1 for frame in frames]
    return np.array(table or [-1], dtype=np.int32)[number]


def _sites_of(builder: GraphBuilder, placed: Placed) -> I32:
    rows = zip(placed.frames, placed.within, placed.reason, strict=True)
    table = [
        builder.sites.number(Site(frame, "" if frame else f"in {within}" if within else reason or "no line"))
        for frame, within, reason in rows
    ]
    return np.array(table or [0], dtype=np.int32)[placed.number]


class HostSites:
    """Where the host was between two calls.

    What is short is on its way to the line of the call behind. What is long is where samples found the host
    in times between the same two lines; without samples its line is unknown, and said to be between the two.
    """

    def __init__(
        self, trace: Trace, builder: GraphBuilder, own: tuple[str, ...], between: Between, site_of_call: I32
    ) -> None:
        self._builder, self._edge = builder, between.edge
        self._before, self._after = site_of_call[between.before], site_of_call[between.after]
        self._pair, self._pairs = combined(self._before, self._after)
        self._sampled = _sampled(trace, builder, own, between, self._pair)

    def add_parts(self, row: I32, start_ns: I64, ns: I64) -> None:
        """Parts of the edges of rows of `between`: code of the host from `start_ns` on."""
        builder = self._builder
        known = (ns <= DISPATCH_NS) | (self._before[row] == self._after[row])
        sampled = np.isin(self._pair[row], list(self._sampled)) & (ns > DISPATCH_NS)
        site = np.where(known, self._after[row], -1)
        unknown = np.flatnonzero(~known & ~sampled)
        for number in unique(self._pair[row[unknown]]).tolist():
            mine = unknown[self._pair[row[unknown]] == number]
            site[mine] = builder.sites.number(self._between(*self._pairs[number]))
        whole = np.flatnonzero(~sampled)
        edge = self._edge[row]
        builder.parts(edge[whole], ns[whole], Kind.HOST_CODE, site[whole], start_ns=start_ns[whole])
        for number, shares in self._sampled.items():
            mine = np.flatnonzero(sampled & (self._pair[row] == number))
            left_ns, left = ns[mine].copy(), sum(shares.values())
            for line, samples in shares.items():
                part_ns = left_ns * samples // left
                builder.parts(edge[mine], part_ns, Kind.HOST_CODE, line, start_ns=start_ns[mine])
                left_ns, left = left_ns - part_ns, left - samples

    def _between(self, before: int, after: int) -> Site:
        first, last = (self._builder.sites.sites[number] for number in (before, after))
        if first.frame is None or last.frame is None:
            return Site(None, "host code without a line")
        return Site(None, f"between {first.key} and {last.key}", (first.frame, last.frame))


def _sampled(
    trace: Trace, builder: GraphBuilder, own: tuple[str, ...], between: Between, pair: I32
) -> dict[int, dict[int, int]]:
    """By pair of lines how many samples found the host at which site."""
    ownership = Ownership(own)
    samples = trace.samples(ownership)
    if not len(samples) or not samples.stacks:
        return {}
    row = _between_of(samples, between)
    found = np.flatnonzero((row >= 0) & (samples.stack >= 0))
    found = found[_usual(between, pair)[row[found]]]
    frames = [next((f for f in stack if ownership.is_own(f.file)), None) for stack in samples.stacks]
    counts: dict[int, Counter[int]] = {}
    for number, stack in zip(pair[row[found]].tolist(), samples.stack[found].tolist(), strict=True):
        frame = frames[stack]
        if frame is not None:
            counts.setdefault(number, Counter())[builder.sites.number(Site(frame, ""))] += 1
    return {n: dict(found.most_common()) for n, found in counts.items() if found.total() >= _ENOUGH_SAMPLES}


def _between_of(samples: HostSamples, between: Between) -> npt.NDArray[np.int64]:
    """Per sample the row of `between` that it was taken in, -1 none."""
    out = full(len(samples), -1)
    for thread in unique(samples.thread).tolist():
        rows = np.flatnonzero(between.thread == thread)
        mine = np.flatnonzero(samples.thread == thread)
        if not len(rows):
            continue
        rows = rows[np.argsort(between.start_ns[rows], kind="stable")]
        at = np.searchsorted(between.start_ns[rows], samples.time_ns[mine], "right") - 1
        inside = (at >= 0) & (samples.time_ns[mine] < between.end_ns[rows[np.maximum(at, 0)]])
        out[mine[inside]] = rows[at[inside]]
    return out


def _usual(between: Between, pair: I32) -> npt.NDArray[np.bool_]:
    """Whether a gap is long, and about as long as the other long ones between its two lines."""
    ns = between.end_ns - between.start_ns
    long = np.flatnonzero(ns > DISPATCH_NS)
    median = StatsByKey.of(pair[long], ns[long], int(pair.max(initial=-1)) + 1).median
    return np.asarray((ns > DISPATCH_NS) & (ns <= _UNLIKE * median[pair]))
