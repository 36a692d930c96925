# SPDX-License-Identifier: Apache-2.0
"""Calls of the CUDA API by name: how often, how long, and from which lines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.coverage import Coverage
from profiling_lab.analysis.host.activity import ActivityKind, call_kinds
from profiling_lab.analysis.places import Place, call_places, covered
from profiling_lab.analysis.stats import Stats, StatsByKey, merged_names, possible
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.attribution import BLEED_NS
from profiling_lab.trace.columns import I32, I64, OverheadKind, dense, unique
from profiling_lab.trace.cuda_calls import CudaCall, are_any
from profiling_lab.trace.trace import Trace

_KINDS = {
    ActivityKind.WAIT: "waits",
    ActivityKind.ALLOCATOR: "memory",
    ActivityKind.CODE_LOADING: "loads code",
}
LAUNCHES = "launches"
POLLING = "polls"


@dataclass(frozen=True, slots=True)
class ApiRow:
    """All calls of one function; its version suffix is not part of the name."""

    name: str
    kind: str
    """'launches', 'waits', 'memory' (allocates or frees), 'loads code', 'polls' (a watchdog asks, again and
    again, whether something has ended: it holds nothing up) or ''"""
    stats: Stats
    """of the time inside of the call, ns"""
    share_frac: float
    """of the time inside of all calls, summed over threads"""
    queue_full_ns: int
    """of this time: the launch queue was full, so the host waited for the GPU; as far as the file shows"""
    threads: int
    polls: int
    """calls made by threads that only watch"""
    pollers: tuple[str, ...]
    """names of those threads, as far as the file knows them"""
    places: tuple[Place, ...]

    @property
    def key(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ApisResult:
    """Functions by time, the longest first."""

    rows: tuple[ApiRow, ...]
    coverage: Coverage
    calls: int
    total_ns: int
    """time inside of calls, summed over threads"""
    queue_full_ns: int
    threads: int
    polls: int
    total_matched: int

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


def apis(trace: Trace, own: tuple[str, ...] | None = None, limit: int | None = None) -> ApisResult:
    """Sum the time inside of API calls by function. own: see Ownership. limit: the most rows.

    Raises NotEnoughDataError if no API call was recorded.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    calls = trace.calls
    inside = trace.calls_inside & possible(calls.start_ns, calls.end_ns)
    if not inside.any():
        raise NotEnoughDataError(f"{trace.path} holds no API call: {_why_none(trace)}")
    own_row, coverage = covered(trace, own)
    name, names = merged_names(calls.name, calls.names)
    name = np.where(inside, name, -1).astype(np.int32)
    took_ns = np.where(inside, calls.end_ns - calls.start_ns, 0)
    stats = StatsByKey.of(name, took_ns, len(names))
    ranked = stats.ranked(names)
    shown = ranked[:limit]
    places = call_places(trace, own_row).by_key(name, took_ns, shown)
    full_ns, _ = _analysis.sum_by_key(name, _queue_full(trace), len(names))
    polls = watchdog_polls(trace) & inside
    polled = np.bincount(name[polls], minlength=len(names))
    kinds = _kinds(trace, name, len(names))
    threads, pollers = _threads(name, calls.thread, inside), _threads(name, calls.thread, polls)
    named = trace.source.thread_names()
    total_ns = int(stats.total.sum())
    rows = tuple(
        ApiRow(
            name=names[i],
            kind=POLLING if polled[i] == stats.count[i] else kinds[i],
            stats=stats[i],
            share_frac=int(stats.total[i]) / total_ns if total_ns else 0.0,
            queue_full_ns=int(full_ns[i]),
            threads=len(threads[i]),
            polls=int(polled[i]),
            pollers=tuple(sorted({named.get(thread, "") for thread in pollers.get(i, ())} - {""})),
            places=places[i],
        )
        for i in shown
    )
    return ApisResult(
        rows=rows,
        coverage=coverage,
        calls=int(inside.sum()),
        total_ns=total_ns,
        queue_full_ns=int(full_ns.sum()),
        threads=len(unique(calls.thread[inside])),
        polls=int(polls.sum()),
        total_matched=len(ranked),
    )


def _queue_full(trace: Trace) -> I64:
    """Per call the time in it in which the launch queue was full: long launches then mean a busy GPU."""
    calls, overheads = trace.calls, trace.overheads
    out = np.zeros(len(calls), dtype=np.int64)
    rows = np.flatnonzero(overheads.kind == OverheadKind.COMMAND_BUFFER_FULL)
    if not len(rows):
        return out
    _, call, _ = _analysis.contain(
        calls.start_ns, calls.end_ns, calls.thread, overheads.start_ns[rows], overheads.thread[rows], BLEED_NS
    )
    known = call >= 0
    end_ns = np.minimum(overheads.end_ns[rows[known]], calls.end_ns[call[known]])
    np.add.at(out, call[known], np.maximum(end_ns - overheads.start_ns[rows[known]], 0))
    return out


def _threads(name: I32, thread: I32, wanted: npt.NDArray[np.bool_]) -> dict[int, list[int]]:
    """The threads that make the wanted calls of each name."""
    _, pairs = dense(name[wanted].astype(np.int64) << 32 | thread[wanted])
    found: dict[int, list[int]] = {}
    for pair in pairs.tolist():
        found.setdefault(pair >> 32, []).append(pair & 0xFFFFFFFF)
    return found


def watchdog_polls(trace: Trace) -> npt.NDArray[np.bool_]:
    """Per call, whether it asks if something has ended, on a thread that launches nothing."""
    calls = trace.calls
    asks = are_any(calls, (CudaCall.POLL,))
    launches = np.zeros(len(trace.source.threads.ids) + 1, dtype=bool)
    launches[calls.thread[_launching(trace)]] = True
    return asks & ~launches[calls.thread]


def _launching(trace: Trace) -> I32:
    """Rows of the calls behind GPU operations."""
    if not len(trace.operations):
        return np.empty(0, dtype=np.int32)
    call = trace.attribution.call
    return call[call >= 0]


def _kinds(trace: Trace, name: I32, names: int) -> list[str]:
    """What the calls of each name do."""
    kinds = [""] * names
    doing = call_kinds(trace.calls)
    inside = np.flatnonzero(name >= 0)
    _, first = np.unique(name[inside], return_index=True)
    for row in inside[first].tolist():
        kinds[name[row]] = _KINDS.get(ActivityKind(int(doing[row])), "")
    launching = name[_launching(trace)]
    for i in unique(launching[launching >= 0]).tolist():
        kinds[i] = kinds[i] or LAUNCHES
    return kinds


def _why_none(trace: Trace) -> str:
    if trace.whole is not trace:
        return "none lies in the part that was asked for"
    reasons = {
        "nsys": "record with --trace=cuda",
        "torch.profiler": "ProfilerActivity.CUDA was not on",
        "rocprofv3": "record with --hip-trace",
        "XLA": "nothing was launched on a GPU while it was recorded",
    }
    return reasons.get(trace.recorder, "the program made none while it was recorded")
