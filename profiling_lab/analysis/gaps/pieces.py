# SPDX-License-Identifier: Apache-2.0
"""The ladder of causes: GPU idle time in pieces, each with what held it up and the stacks around it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.device_spans import device_spans
from profiling_lab.analysis.gaps.causes import LATENCY_NS, Cause
from profiling_lab.analysis.gaps.cut import Cut, cut_gaps
from profiling_lab.analysis.host.activity import ActivityKind, HostActivity, host_activity
from profiling_lab.analysis.places import call_stacks
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I32, I64, full, unique
from profiling_lab.trace.cuda_calls import COPIES, CudaCall, are_any
from profiling_lab.trace.operation_classes import device_tracks
from profiling_lab.trace.spans import Rows, Window
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class GapPieces:
    """Idle time of all devices, cut; together the pieces are all gaps, each nanosecond once. In a window, the
    parts of them that lie in it.
    """

    start_ns: I64
    end_ns: I64
    process: I32
    device: I32
    """as device_spans numbers them"""
    gap: I32
    """a number for each gap"""
    late: npt.NDArray[np.bool_]
    """the launch of the operation that ends the gap was not yet made, or not yet done"""
    cause: I32
    what: I32
    """row of `names`"""
    stack: I32
    """of the line the host was in or was on its way to; 0 unknown"""
    exact: npt.NDArray[np.bool_]
    """the host was in the line of `stack`"""
    after: I32
    """stack of the call before, 0 unknown"""
    until: I32
    """stack of the launch that ends the gap, 0 unknown"""
    thread: I32
    """in charge, -1 after the launch"""
    names: tuple[str, ...]
    queue_full_ns: int
    """all time with a full launch queue, within gaps or not, counted once per thread"""

    @property
    def gaps(self) -> int:
        return len(unique(self.gap))

    @property
    def late_gaps(self) -> int:
        """Gaps in which the launch was not yet made when the GPU ran dry."""
        return len(unique(self.gap[self.late]))

    def mostly(self, rows: I64) -> str:
        """What was going on in most of the time of these pieces, by its name."""
        idle_ns = self.end_ns[rows] - self.start_ns[rows]
        return self.names[int(np.bincount(self.what[rows], weights=idle_ns).argmax())]


def gap_pieces(trace: Trace) -> GapPieces:
    """Find all gaps of all devices and cut them.

    Those of a window are found in the whole recording: what ends a gap may lie behind the window.
    """
    host = host_activity(trace.whole)
    pieces = _whole(trace.whole, host)
    if len(trace.pauses.spans):
        outside = trace.pauses.spans.cut_out(pieces.process, pieces.start_ns, pieces.end_ns)
        pieces = _parts(pieces, *outside)
    return pieces if trace.window is None else _inside(trace, trace.window, pieces, host)


def _whole(trace: Trace, host: HostActivity) -> GapPieces:
    operations = trace.operations
    device, devices = device_tracks(operations)
    start_ns, end_ns, track, ends_it = _analysis.gaps_between(operations.start_ns, operations.end_ns, device)
    launch = trace.attribution.call[ends_it]
    cut = cut_gaps(trace, host, start_ns, end_ns, launch)
    cause = _causes(trace, host, cut)
    stack, exact, after = _stacks(trace, host, cut, cause)
    blank = len(host.names)
    return GapPieces(
        start_ns=cut.start_ns,
        end_ns=cut.end_ns,
        process=np.array([process for process, _ in devices], dtype=np.int32)[track[cut.gap]],
        device=track[cut.gap],
        gap=cut.gap,
        late=cut.thread >= 0,
        cause=cause,
        what=np.append(host.name, np.int32(blank))[cut.who],
        stack=stack,
        exact=exact,
        after=after,
        until=np.append(call_stacks(trace), np.int32(0))[cut.launch],
        thread=cut.thread,
        names=(*host.names, ""),
        queue_full_ns=_queue_full_ns(trace, host, None),
    )


def _inside(trace: Trace, window: Window, pieces: GapPieces, host: HostActivity) -> GapPieces:
    known = device_spans(trace.whole).devices
    shown = {device: number for number, device in enumerate(device_spans(trace).devices)}
    number = np.array([shown.get(device, -1) for device in known], dtype=np.int32)
    row, start_ns, end_ns = window.gpu.cut(pieces.process, pieces.start_ns, pieces.end_ns)
    kept = (number[pieces.device[row]] >= 0) & (end_ns > start_ns)
    parts = _parts(pieces, row[kept], start_ns[kept], end_ns[kept])
    return replace(parts, device=number[parts.device], queue_full_ns=_queue_full_ns(trace, host, window))


def _parts(pieces: GapPieces, row: Rows, start_ns: I64, end_ns: I64) -> GapPieces:
    """Parts of pieces, each of the piece at `row`."""
    return replace(
        pieces,
        start_ns=start_ns,
        end_ns=end_ns,
        process=pieces.process[row],
        device=pieces.device[row],
        gap=pieces.gap[row],
        late=pieces.late[row],
        cause=pieces.cause[row],
        what=pieces.what[row],
        stack=pieces.stack[row],
        exact=pieces.exact[row],
        after=pieces.after[row],
        until=pieces.until[row],
        thread=pieces.thread[row],
    )


def _queue_full_ns(trace: Trace, host: HostActivity, window: Window | None) -> int:
    rows = np.flatnonzero(host.doing == ActivityKind.QUEUE_FULL)
    start_ns, end_ns = host.start_ns[rows], host.end_ns[rows]
    if window is not None:
        part, start_ns, end_ns = window.host.cut(host.process[rows], start_ns, end_ns)
        rows = rows[part]
    busy = _analysis.busy_ns(start_ns, end_ns, host.thread[rows], len(trace.source.threads.ids))
    return int(busy.sum())


def _causes(trace: Trace, host: HostActivity, cut: Cut) -> I32:
    out: I32 = np.where(cut.thread >= 0, _host_causes(trace, host, cut), _after_launch(trace, cut))
    return out.astype(np.int32)


def _host_causes(trace: Trace, host: HostActivity, cut: Cut) -> I32:
    """What the thread was doing, but for waits: they reach beyond their own call."""
    calls = trace.calls
    cause = np.append(host.doing, np.int32(Cause.HOST_CODE))[cut.who]
    call = np.append(host.call, np.int32(-1))[cut.who]
    # A call that was under way when the GPU ran dry waited for it, a copy to pageable memory just as a
    # synchronize; the launch of the very operation that ends the gap did not.
    under_way = (cut.thread >= 0) & (call >= 0)
    under_way &= np.append(host.start_ns, 0)[cut.who] < cut.gap_start_ns
    copies = np.append(are_any(calls, COPIES), False)
    cause[under_way & (call != cut.launch) & copies[call]] = Cause.WAIT
    waited = np.zeros(int(cut.gap.max(initial=-1)) + 1, dtype=bool)
    waited[cut.gap[under_way & (cause == Cause.WAIT)]] = True
    cause[(cause == Cause.HOST_CODE) & waited[cut.gap]] = Cause.AFTER_WAIT
    # A blocking copy waits for nothing while its own copy has not begun.
    cause[(call >= 0) & (call == cut.launch) & (cause == Cause.WAIT)] = Cause.CUDA_CALL
    return cause


def _after_launch(trace: Trace, cut: Cut) -> npt.NDArray[np.intp]:
    """The host had done its part."""
    calls, none = trace.calls, np.int32(-1)
    before = np.append(_neighbour_calls(trace)[0], none)[cut.launch]
    on_event = np.append(are_any(calls, (CudaCall.STREAM_WAIT_EVENT,)), False)[before]
    in_time = np.append(calls.end_ns, 0)[cut.launch] <= cut.gap_start_ns
    short = np.where(in_time, Cause.BETWEEN, Cause.LATENCY)
    long = np.where(on_event, Cause.EVENT_WAIT, Cause.LATE_START)
    known = np.where(cut.end_ns - cut.start_ns <= LATENCY_NS, short, long)
    return np.where(cut.launch >= 0, known, Cause.NOT_RECORDED)


def _neighbour_calls(trace: Trace) -> tuple[I32, I32]:
    """Per call the one before it on its thread, and the rows of all calls in (thread, time) order."""
    calls = trace.calls
    order = np.lexsort((calls.start_ns, calls.thread)).astype(np.int32)
    previous = full(len(calls), -1, np.int32)
    same = calls.thread[order][1:] == calls.thread[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous, order


def _stacks(trace: Trace, host: HostActivity, cut: Cut, cause: I32) -> tuple[I32, npt.NDArray[np.bool_], I32]:
    """The stack at each piece, whether the host was in it, and the stack of the call before."""
    calls, none, empty = trace.calls, np.int32(-1), np.int32(0)
    stack_of = np.append(call_stacks(trace), empty)
    call, range_row = np.append(host.call, none)[cut.who], np.append(host.range, none)[cut.who]
    stack = np.where(call >= 0, stack_of[call], np.append(trace.ranges.stack, empty)[range_row])
    stack = np.where(stack > 0, stack, np.append(host.stack, empty)[cut.who])
    exact = stack > 0
    after, coming = full(len(cut.who), 0, np.int32), full(len(cut.who), 0, np.int32)
    _, order = _neighbour_calls(trace)
    for number in unique(cut.thread[cut.thread >= 0]).tolist():
        rows = order[calls.thread[order] == number]
        mine = np.flatnonzero(cut.thread == number)
        at = np.searchsorted(calls.start_ns[rows], cut.start_ns[mine], side="left")
        bounded = np.append(rows, none)
        coming[mine] = stack_of[bounded[at]]
        after[mine] = np.where(at > 0, stack_of[bounded[at - 1]], 0)
    coming = np.where(coming > 0, coming, stack_of[cut.launch])
    # Data loading is not on the way to a line of its own: without a stack it has none.
    stack = np.where(stack > 0, stack, np.where(cause == Cause.DATA_LOADING, 0, coming))
    # After the launch the operation's own line is what the GPU was waiting for.
    stack = np.where(cut.thread >= 0, stack, stack_of[cut.launch])
    return stack.astype(np.int32), exact | (cut.thread < 0), after
