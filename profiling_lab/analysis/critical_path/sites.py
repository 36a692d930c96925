# SPDX-License-Identifier: Apache-2.0
"""The lines behind calls, operations, and the time of the host between two calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.critical_path.graph import GraphBuilder, Site
from profiling_lab.analysis.critical_path.kinds import Kind
from profiling_lab.analysis.places import Placed, call_places, operation_places, ran_in_backward
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, combined, full, unique
from profiling_lab.trace.extras import HostSamples
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.trace import Trace

DISPATCH_NS = 50_000
"""from Python's call of an operator to its launch no more passes: it belongs to the line of the launch"""
_ENOUGH_SAMPLES = 2
_NEAR = (-1, 0, 1)
"""powers of two: a gap half or twice as long is like another, a longer one is a hook, or start-up"""


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
    """The site of each operation: of what a hook or the backward of a Function launched, its line there."""
    own_row = trace.stacks.own_rows(Ownership(own))
    site = _sites_of(builder, operation_places(trace, own_row))
    ran = ran_in_backward(trace, own_row)
    return np.where(ran > 0, _sites_of_rows(trace, builder, ran), site)


def stack_sites(trace: Trace, builder: GraphBuilder, own: tuple[str, ...], stack: I32) -> I32:
    """The site of each stack, -1 for one without a line."""
    return _sites_of_rows(trace, builder, trace.stacks.own_rows(Ownership(own))[stack])


def _sites_of_rows(trace: Trace, builder: GraphBuilder, own_row: I32) -> I32:
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
    in times as long between the same two lines; without samples its line is that of both calls, or unknown
    and said to be between the two.
    """

    def __init__(
        self, trace: Trace, builder: GraphBuilder, own: tuple[str, ...], between: Between, site_of_call: I32
    ) -> None:
        self._builder, self._edge = builder, between.edge
        self._before, self._after = site_of_call[between.before], site_of_call[between.after]
        ns = between.end_ns - between.start_ns
        length = np.where(ns > DISPATCH_NS, np.log2(np.maximum(ns, 1)), -1).astype(np.int64)
        self._alike, alike = combined(self._before, self._after, length)
        self._sampled = _sampled(trace, builder, own, between, self._alike, alike)

    def add_parts(self, row: I32, start_ns: I64, ns: I64) -> None:
        """Parts of the edges of rows of `between`: code of the host from `start_ns` on."""
        builder = self._builder
        alike = self._alike[row]
        sampled = np.isin(alike, list(self._sampled)) & (ns > DISPATCH_NS)
        known = (ns <= DISPATCH_NS) | (self._before[row] == self._after[row])
        site = np.where(known, self._after[row], -1)
        pair, pairs = combined(self._before[row], self._after[row])
        unknown = np.flatnonzero(~known & ~sampled)
        for number in unique(pair[unknown]).tolist():
            mine = unknown[pair[unknown] == number]
            site[mine] = builder.sites.number(self._between(*pairs[number]))
        whole = np.flatnonzero(~sampled)
        edge = self._edge[row]
        builder.parts(edge[whole], ns[whole], Kind.HOST_CODE, site[whole], start_ns=start_ns[whole])
        for number, shares in self._sampled.items():
            mine = np.flatnonzero(sampled & (alike == number))
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
    trace: Trace,
    builder: GraphBuilder,
    own: tuple[str, ...],
    between: Between,
    alike: I32,
    lengths: Sequence[tuple[int, ...]],
) -> dict[int, dict[int, int]]:
    """By number of gaps that are alike how many samples found the host at which site.

    alike: per gap its number; lengths: by number the two lines, and the power of two of its length.
    """
    ownership = Ownership(own)
    samples = trace.samples(ownership)
    if not len(samples) or not samples.stacks:
        return {}
    row = between_of(samples, between)
    found = np.flatnonzero((row >= 0) & (samples.stack >= 0))
    frames = [next((f for f in stack if ownership.is_own(f.file)), None) for stack in samples.stacks]
    numbers = {key: number for number, key in enumerate(lengths)}
    counts: dict[int, Counter[int]] = {}
    for number, stack in zip(alike[row[found]].tolist(), samples.stack[found].tolist(), strict=True):
        frame = frames[stack]
        *lines, length = lengths[number]
        if frame is None or length < 0:
            continue
        site = builder.sites.number(Site(frame, ""))
        for near in _NEAR:
            if (other := numbers.get((*lines, length + near))) is not None:
                counts.setdefault(other, Counter())[site] += 1
    return {n: dict(found.most_common()) for n, found in counts.items() if found.total() >= _ENOUGH_SAMPLES}


def between_of(samples: HostSamples, between: Between) -> npt.NDArray[np.int64]:
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
