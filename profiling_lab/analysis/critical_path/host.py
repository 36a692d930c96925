# SPDX-License-Identifier: Apache-2.0
"""The host's part of the graph: calls in the order of their thread, what lies between them, and backward's
thread, which works while the thread that called backward waits for it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.critical_path.calls import HostCalls, in_backward, kinds_of_calls
from profiling_lab.analysis.critical_path.graph import GraphBuilder
from profiling_lab.analysis.critical_path.idle_threads import gave_work
from profiling_lab.analysis.critical_path.kinds import Kind
from profiling_lab.analysis.critical_path.recorder_time import RecorderTime
from profiling_lab.analysis.critical_path.sites import Between, HostSites, stack_sites
from profiling_lab.analysis.critical_path.waits import BlockedCalls
from profiling_lab.analysis.host.activity import ActivityKind, host_activity
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, full, unique
from profiling_lab.trace.trace import Trace

_INTERRUPTS = (
    ActivityKind.OFF_CPU,
    ActivityKind.SYSTEM_CALL,
    ActivityKind.GARBAGE_COLLECTION,
    ActivityKind.GIL_WAIT,
    ActivityKind.DATA_LOADING,
    ActivityKind.CODE_LOADING,
    ActivityKind.COMPILATION,
    ActivityKind.PROFILER,
)
"""what a thread does between calls, and inside of them, for reasons of its own"""


def add_host(
    trace: Trace,
    builder: GraphBuilder,
    calls: HostCalls,
    held: BlockedCalls,
    site: I32,
    own: tuple[str, ...],
    recorder: RecorderTime,
) -> None:
    """Add the order of the threads, and what their time was spent with. site: per call of the trace."""
    before, after, thread = _order(trace, calls)
    table = trace.calls
    start_ns, end_ns = table.end_ns[calls.rows[before]], table.start_ns[calls.rows[after]]
    fits = start_ns <= end_ns
    before, after, thread = before[fits], after[fits], thread[fits]
    start_ns, end_ns = start_ns[fits], end_ns[fits]
    rows = calls.rows.astype(np.int32)
    gave = gave_work(trace, calls, Between(thread, start_ns, end_ns, rows[before], rows[after], before))
    given = np.flatnonzero(gave >= 0)
    builder.edges(calls.end[before[given]], calls.begin[after[given]], np.zeros_like(given))
    before = np.where(gave >= 0, gave, before)
    start_ns = table.end_ns[calls.rows[before]]
    edge = builder.edges(calls.end[before], calls.begin[after], end_ns - start_ns)
    between = Between(thread, start_ns, end_ns, rows[before], rows[after], edge)
    sites = HostSites(trace, builder, own, between, site)

    # Calls that the GPU held take the time that they would take by themselves.
    took_ns = table.end_ns[calls.rows] - table.start_ns[calls.rows]
    own_ns = np.where(held.own_ns >= 0, held.own_ns, took_ns)
    body = builder.edges(calls.begin, calls.end, own_ns)
    kind = kinds_of_calls(trace)[calls.rows]
    label = builder.labels.numbers(table.names)[table.name[calls.rows]]
    site_of = site[calls.rows]
    short = np.flatnonzero(held.own_ns >= 0)
    ours = np.minimum(recorder.inside_ns[rows[short]], own_ns[short])
    ours[kind[short] != Kind.LAUNCH] = 0  # in a wait the recorder works while the GPU does
    builder.parts(body[short], ours, Kind.PROFILER, site_of[short], label[short])
    builder.parts(body[short], own_ns[short] - ours, kind[short], site_of[short], label[short])

    # The rest is cut where something interrupted it.
    long, gaps = np.flatnonzero(held.own_ns < 0), len(edge)
    pieces = _cut(
        trace,
        np.concatenate([start_ns, table.start_ns[calls.rows[long]]]),
        np.concatenate([end_ns, table.end_ns[calls.rows[long]]]),
        np.concatenate([thread, table.thread[calls.rows[long]]]),
    )
    is_gap, plain = pieces.window < gaps, pieces.doing < 0
    # The recorder works when a call begins, and when it has ended.
    ours_ns = np.concatenate([recorder.behind_ns[rows[before]], recorder.inside_ns[rows[long]]])
    call = np.concatenate([before, long])
    takes, first = np.unique(pieces.window[plain], return_index=True)
    first = np.flatnonzero(plain)[first]
    ours = np.zeros(len(pieces.ns), dtype=np.int64)
    ours[first] = np.minimum(ours_ns[takes], pieces.ns[first])
    edges, of = np.concatenate([edge, body[long]])[takes], call[takes]
    builder.parts(edges, ours[first], Kind.PROFILER, site_of[of], label[of], start_ns=pieces.start_ns[first])
    start, ns = pieces.start_ns + ours, pieces.ns - ours
    code = np.flatnonzero(is_gap & plain)
    sites.add_parts(pieces.window[code], start[code], ns[code])
    inside = np.flatnonzero(~is_gap & plain)
    of = long[pieces.window[inside] - gaps]
    builder.parts(body[of], ns[inside], kind[of], site_of[of], label[of], start_ns=start[inside])
    stopped = np.flatnonzero(~plain)
    window = pieces.window[stopped]
    target = np.concatenate([edge, body[long]])[window]
    near = np.concatenate([site[between.after], site_of[long]])[window]
    at = stack_sites(trace, builder, own, pieces.stack[stopped])
    where = np.where(at >= 0, at, near)
    ns, kinds = pieces.ns[stopped], pieces.doing[stopped]
    builder.parts(target, ns, kinds, where, start_ns=pieces.start_ns[stopped])


def _order(trace: Trace, calls: HostCalls) -> tuple[I64, I64, I32]:
    """Which call follows which: (the one before, the one behind, the thread whose time lies between).

    Calls follow each other on their thread. Backward runs on a thread of its own: its first calls follow the
    call of the main thread before, and the main thread goes on behind its last.
    """
    thread = trace.calls.thread[calls.rows]
    follows = np.flatnonzero(thread[1:] == thread[:-1]) + 1
    before, after = [follows - 1], [follows]
    whose = [thread[follows]]
    removed = np.zeros(len(calls.rows), dtype=bool)
    backward = in_backward(trace)[calls.rows]
    for process, main in calls.main.items():
        first, last, at = _backward_runs(trace, calls, process, main, backward)
        if not len(first):
            continue
        mine = np.flatnonzero(thread == main)
        inside = (at > 0) & (at < len(mine))
        removed[first] = True
        began, ended = np.flatnonzero(at > 0), np.flatnonzero(inside)
        removed[mine[at[ended]]] = True
        before += [mine[at[began] - 1], last[ended]]
        after += [first[began], mine[at[ended]]]
        whose += [full(len(began), main, np.int32), full(len(ended), main, np.int32)]
    kept = ~removed[follows]
    before[0], after[0], whose[0] = before[0][kept], after[0][kept], whose[0][kept]
    firsts = np.flatnonzero(np.append(True, thread[1:] != thread[:-1]))
    _start_threads(trace, calls, firsts[~removed[firsts]], before, after, whose)
    return np.concatenate(before), np.concatenate(after), np.concatenate(whose).astype(np.int32)


def _backward_runs(
    trace: Trace, calls: HostCalls, process: int, main: int, backward: npt.NDArray[np.bool_]
) -> tuple[I64, I64, npt.NDArray[np.intp]]:
    """Runs of calls of a backward thread in which the main thread made none: first, last, and how many calls
    of the main thread came before.
    """
    table = trace.calls
    thread = table.thread[calls.rows]
    mine = np.flatnonzero(thread == main)
    others = np.flatnonzero((table.process[calls.rows] == process) & (thread != main))
    engines = [n for n in unique(thread[others]).tolist() if backward[thread == n].mean() > 0.5]
    rows = others[np.isin(thread[others], engines)]
    at = np.searchsorted(table.start_ns[calls.rows[mine]], table.start_ns[calls.rows[rows]], "right")
    # Backward works while the main thread is between two calls.
    done = np.append(table.end_ns[calls.rows[mine]], 0)[at - 1] <= table.start_ns[calls.rows[rows]]
    breaks = np.ones(len(rows) + 1, dtype=bool)
    breaks[1:-1] = (thread[rows][1:] != thread[rows][:-1]) | (at[1:] != at[:-1])
    first, last = np.flatnonzero(breaks[:-1]), np.flatnonzero(breaks[1:])
    good = done[first]
    return rows[first[good]], rows[last[good]], at[first[good]]


def _start_threads(
    trace: Trace,
    calls: HostCalls,
    firsts: npt.NDArray[np.intp],
    before: list[I64],
    after: list[I64],
    whose: list[I32],
) -> None:
    """The first call of a thread follows what the main thread did last."""
    table = trace.calls
    thread, process = table.thread[calls.rows], table.process[calls.rows]
    for first in firsts.tolist():
        main = calls.main[int(process[first])]
        if thread[first] == main:
            continue
        mine = np.flatnonzero(thread == main)
        at = int(np.searchsorted(table.end_ns[calls.rows[mine]], table.start_ns[calls.rows[first]], "right"))
        if at:
            before.append(mine[at - 1 : at])
            after.append(np.array([first]))
            whose.append(thread[first : first + 1])


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Times of threads, cut where something interrupted them."""

    window: I32
    start_ns: I64
    ns: I64
    doing: I32
    """ActivityKind, -1: nothing interrupted"""
    stack: I32
    """of the interruption, 0 none"""


def _cut(trace: Trace, start_ns: I64, end_ns: I64, thread: I32) -> _Pieces:
    host = host_activity(trace, (int(start_ns.min(initial=0)), int(end_ns.max(initial=0))))
    rows = np.flatnonzero(np.isin(host.doing, _INTERRUPTS) & (host.call < 0) & (host.end_ns > host.start_ns))
    window, starts, ends, winner = _analysis.cut_by_winners(
        start_ns,
        end_ns,
        np.ascontiguousarray(thread, dtype=np.int32),
        host.start_ns[rows],
        host.end_ns[rows],
        host.thread[rows],
        host.doing[rows],
    )
    doing = np.append(host.doing[rows], np.int32(-1))[winner]
    return _Pieces(window, starts, ends - starts, doing, np.append(host.stack[rows], np.int32(0))[winner])
