# SPDX-License-Identifier: Apache-2.0
"""The ladder of causes: GPU idle time in pieces, each with what held it up and the stacks around it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.trace.columns import I32, I64, full
from profiling_lab.trace.host_activity import Doing, HostActivity, host_activity
from profiling_lab.trace.operation_classes import device_tracks
from profiling_lab.trace.trace import Trace

LATENCY_NS = 10_000
"""the longest pause of the GPU, between operations or before the one just launched, that needs no cause"""


class Cause(IntEnum):
    """Why the GPU was idle. The first are what the host's thread was doing (host_activity.Doing)."""

    HOST_CODE = Doing.RANGE
    SYSTEM_CALL = Doing.SYSTEM_CALL
    GARBAGE_COLLECTION = Doing.GARBAGE_COLLECTION
    GIL_WAIT = Doing.GIL_WAIT
    DATA_LOADING = Doing.DATA_LOADING
    CUDA_CALL = Doing.CUDA_CALL
    WAIT = Doing.WAIT
    ALLOCATOR = Doing.ALLOCATOR
    CODE_LOADING = Doing.CODE_LOADING
    QUEUE_FULL = Doing.QUEUE_FULL
    PROFILER = Doing.PROFILER
    AFTER_WAIT = 11
    LATENCY = 12
    BETWEEN = 13
    EVENT_WAIT = 14
    LATE_START = 15
    NOT_RECORDED = 16


CAUSES = {
    Cause.HOST_CODE: "host code",
    Cause.SYSTEM_CALL: "host blocked in the system",
    Cause.GARBAGE_COLLECTION: "garbage collection",
    Cause.GIL_WAIT: "waiting for the GIL",
    Cause.DATA_LOADING: "data loading",
    Cause.CUDA_CALL: "inside a CUDA call",
    Cause.WAIT: "a wait that returns",
    Cause.ALLOCATOR: "allocation",
    Cause.CODE_LOADING: "loading GPU code",
    Cause.QUEUE_FULL: "launch queue full",
    Cause.PROFILER: "the profiler itself",
    Cause.AFTER_WAIT: "host code after a wait",
    Cause.LATENCY: "launch latency",
    Cause.BETWEEN: "pause between queued operations",
    Cause.EVENT_WAIT: "waiting for an event",
    Cause.LATE_START: "unknown: launched in time, started late",
    Cause.NOT_RECORDED: "unknown: launch not recorded",
}
UNKNOWN = (CAUSES[Cause.LATE_START], CAUSES[Cause.NOT_RECORDED])
_STREAM_WAITS = ("cudaStreamWaitEvent", "cuStreamWaitEvent")


@dataclass(frozen=True, slots=True)
class GapPieces:
    """Idle time of all devices, cut; together the pieces are all gaps, each nanosecond once."""

    start_ns: I64
    end_ns: I64
    process: I32
    cause: I32
    what: I32
    """row of `names`"""
    stack: I32
    """of the line the host was in or was on its way to; 0 unknown"""
    exact: npt.NDArray[np.bool_]
    """the host was in the line of `stack`"""
    after: I32
    """stack of the call before, 0 unknown"""
    names: tuple[str, ...]
    gaps: int
    late: int
    """gaps in which the launch was not yet made when the GPU ran dry"""
    queue_full_ns: int
    """all time with a full launch queue, within gaps or not, counted once per thread"""


@dataclass(frozen=True, slots=True)
class _Windows:
    """Parts of gaps in which one thread was in charge; `thread` -1 after the launch."""

    gap: I32
    start_ns: I64
    end_ns: I64
    thread: I32


def gap_pieces(trace: Trace) -> GapPieces:
    """Find all gaps of all devices and cut them."""
    operations = trace.operations
    device, devices = device_tracks(operations)
    start_ns, end_ns, track, ends_it = _analysis.gaps_between(operations.start_ns, operations.end_ns, device)
    call = trace.attribution.call[ends_it]
    windows = _windows(trace, start_ns, end_ns, call)
    host = host_activity(trace)
    at_host = np.flatnonzero(windows.thread >= 0)
    cut_window, piece_start, piece_end, who = _analysis.cut_by_winners(
        windows.start_ns[at_host],
        windows.end_ns[at_host],
        windows.thread[at_host],
        host.start_ns,
        host.end_ns,
        host.thread,
        host.doing,
    )
    alone = np.flatnonzero(windows.thread < 0)
    window: npt.NDArray[np.intp] = np.concatenate([at_host[cut_window], alone])
    gap = windows.gap[window]
    piece_start = np.concatenate([piece_start, windows.start_ns[alone]])
    piece_end = np.concatenate([piece_end, windows.end_ns[alone]])
    who = np.concatenate([who, full(len(alone), -1, np.int32)])

    cause = _causes(trace, host, windows, window, piece_start, start_ns[gap], call[gap], piece_end, who)
    stack, exact, after = _stacks(trace, host, windows.thread[window], piece_start, call[gap], cause, who)
    blank = len(host.names)
    full_queue = host.doing == Doing.QUEUE_FULL
    return GapPieces(
        start_ns=piece_start,
        end_ns=piece_end,
        process=np.array([process for process, _ in devices], dtype=np.int32)[track[gap]],
        cause=cause,
        what=np.where(who >= 0, np.append(host.name, np.int32(blank))[who], blank).astype(np.int32),
        stack=stack,
        exact=exact,
        after=after,
        names=(*host.names, ""),
        gaps=len(start_ns),
        late=len(np.unique(windows.gap[at_host])),
        queue_full_ns=_length(host, full_queue, len(trace.source.threads.ids)),
    )


def _length(host: HostActivity, rows: npt.NDArray[np.bool_], threads: int) -> int:
    busy = _analysis.busy_ns(host.start_ns[rows], host.end_ns[rows], host.thread[rows], threads)
    return int(busy.sum())


def _windows(trace: Trace, start_ns: I64, end_ns: I64, call: I32) -> _Windows:
    """Each gap in up to three: a thread until it hands over, the launching one, and after the launch."""
    calls = trace.calls
    none = np.int64(np.iinfo(np.int64).max)
    known = call >= 0
    thread = np.append(calls.thread, np.int32(-1))[call]
    launch_start = np.where(known, np.append(calls.start_ns, none)[call], start_ns)
    launch_end = np.where(known, np.append(calls.end_ns, none)[call], start_ns)
    host_end = np.clip(launch_end, start_ns, end_ns)
    before, until = _handed_over(trace, call, start_ns)
    until = np.clip(until, start_ns, np.clip(launch_start, start_ns, end_ns))
    gap = np.arange(len(start_ns), dtype=np.int32)
    parts = (
        (start_ns, until, before),
        (until, host_end, thread),
        (host_end, end_ns, full(len(gap), -1, np.int32)),
    )
    kept = [end > start for start, end, _ in parts]
    return _Windows(
        np.concatenate([gap[keep] for keep in kept]),
        *(
            np.concatenate([part[column][keep] for part, keep in zip(parts, kept, strict=True)])
            for column in range(3)
        ),
    )


def _handed_over(trace: Trace, call: I32, gap_start_ns: I64) -> tuple[I32, I64]:
    """Per gap the thread that was at work before the launching one took over, and until when.

    Forward and backward run on two threads that wait for each other. A thread that makes its first call
    inside of the gap was not the one to be late before: until its own last call it was the other one. Threads
    that never launch (watchdogs, loaders) do not count. Where nothing was handed over, `until` is the start.
    """
    calls = trace.calls
    launched = trace.attribution.call
    launches = np.zeros(len(trace.source.threads.ids) + 1, dtype=bool)
    launches[calls.thread[launched[launched >= 0]]] = True
    rows = np.flatnonzero(launches[calls.thread]) if len(calls) else np.empty(0, dtype=np.intp)
    rows = rows[np.lexsort((calls.start_ns[rows], calls.process[rows]))]
    position = full(len(calls) + 1, 0)
    position[rows] = np.arange(len(rows))
    # Runs of calls of one thread; what matters is where the launch's run began, and the call before that.
    same = (calls.thread[rows][1:] == calls.thread[rows][:-1]) & (
        calls.process[rows][1:] == calls.process[rows][:-1]
    )
    run_start = np.maximum.accumulate(np.where(np.concatenate([[False], same]), 0, np.arange(len(rows))))
    thread, until = full(len(call), -1, np.int32), gap_start_ns.copy()
    known = np.flatnonzero(call >= 0)
    first = run_start[position[call[known]]]
    other = np.maximum(first - 1, 0)
    took_over = (
        (first > 0)
        & (calls.process[rows[other]] == calls.process[rows[first]])
        & (calls.start_ns[rows[first]] > gap_start_ns[known])
        & (calls.end_ns[rows[other]] > gap_start_ns[known])
    )
    at = known[took_over]
    thread[at] = calls.thread[rows[other[took_over]]]
    until[at] = calls.end_ns[rows[other[took_over]]]
    return thread, until


def _causes(
    trace: Trace,
    host: HostActivity,
    windows: _Windows,
    window: npt.NDArray[np.intp],
    start_ns: I64,
    gap_start_ns: I64,
    launch: I32,
    end_ns: I64,
    who: I32,
) -> I32:
    calls = trace.calls
    is_host = windows.thread[window] >= 0
    doing = np.append(host.doing, np.int32(Doing.RANGE))[who]
    cause = doing.copy()
    # A call that was under way when the GPU ran dry waited for it, a copy to pageable memory just as a
    # synchronize; the launch of the very operation that ends the gap did not.
    own_call = np.append(host.call, np.int32(-1))[who]
    before = is_host & (own_call >= 0) & (np.append(host.start_ns, 0)[who] < gap_start_ns)
    copies = np.array([name.startswith(("cudaMemcpy", "cuMemcpy")) for name in calls.names] or [False])
    copying = before & (own_call != launch) & copies[np.append(calls.name, np.int32(0))[own_call]]
    cause[copying] = Cause.WAIT
    waited = full(int(windows.gap.max()) + 1 if len(windows.gap) else 0, 0, np.uint8)
    gap = windows.gap[window]
    waited[gap[before & (cause == Cause.WAIT)]] = 1
    cause[is_host & (cause == Cause.HOST_CODE) & (waited[gap] > 0)] = Cause.AFTER_WAIT
    # A blocking copy waits for nothing while its own copy has not begun.
    cause[is_host & (own_call >= 0) & (own_call == launch) & (cause == Cause.WAIT)] = Cause.CUDA_CALL
    # After the launch the host had done its part.
    previous = _neighbour_calls(trace)[0]
    names = np.array([name in _STREAM_WAITS for name in calls.names] or [False])
    event = names[np.append(calls.name, np.int32(0))[np.append(previous, np.int32(-1))[launch]]]
    event &= np.append(previous, np.int32(-1))[launch] >= 0
    in_time = np.append(calls.end_ns, 0)[launch] <= gap_start_ns
    short = np.where(in_time, Cause.BETWEEN, Cause.LATENCY)
    long = np.where(event, Cause.EVENT_WAIT, Cause.LATE_START)
    rest = np.where(end_ns - start_ns <= LATENCY_NS, short, long)
    rest = np.where(launch >= 0, rest, Cause.NOT_RECORDED)
    out: I32 = np.where(is_host, cause, rest).astype(np.int32)
    return out


def _neighbour_calls(trace: Trace) -> tuple[I32, I32]:
    """Per call the one before it on its thread, and the rows of all calls in (thread, time) order."""
    calls = trace.calls
    order = np.lexsort((calls.start_ns, calls.thread)).astype(np.int32)
    previous = full(len(calls), -1, np.int32)
    same = calls.thread[order][1:] == calls.thread[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous, order


def _stacks(
    trace: Trace, host: HostActivity, thread: I32, start_ns: I64, launch: I32, cause: I32, who: I32
) -> tuple[I32, npt.NDArray[np.bool_], I32]:
    """The stack at each piece, whether the host was in it, and the stack of the call before."""
    calls, stack_of = trace.calls, _call_stacks(trace)
    empty = np.int32(0)
    stack_of = np.append(stack_of, empty)
    own_call, own_range = np.append(host.call, np.int32(-1))[who], np.append(host.range, np.int32(-1))[who]
    stack = np.where(own_call >= 0, stack_of[own_call], np.append(trace.ranges.stack, empty)[own_range])
    exact = stack > 0
    after, coming = full(len(who), 0, np.int32), full(len(who), 0, np.int32)
    _, order = _neighbour_calls(trace)
    for number in np.unique(thread[thread >= 0]).tolist():
        rows = order[calls.thread[order] == number]
        mine = np.flatnonzero(thread == number)
        at = np.searchsorted(calls.start_ns[rows], start_ns[mine], side="left")
        bounded = np.append(rows, np.int32(-1))
        coming[mine] = stack_of[bounded[at]]
        after[mine] = np.where(at > 0, stack_of[bounded[at - 1]], 0)
    coming = np.where(coming > 0, coming, stack_of[launch])
    # Data loading is not on the way to a line of its own: without a stack it has none.
    stack = np.where(stack > 0, stack, np.where(cause == Cause.DATA_LOADING, 0, coming))
    # After the launch the operation's own line is what the GPU was waiting for.
    stack = np.where(thread >= 0, stack, stack_of[launch])
    return stack.astype(np.int32), exact | (thread < 0), after


def _call_stacks(trace: Trace) -> I32:
    """Per call the stack that answers for it: in backward that of the forward line."""
    found = trace.attribution
    stack = trace.calls.stack.copy()
    known = (found.call >= 0) & (found.stack > 0)
    stack[found.call[known]] = found.stack[known]
    return stack
