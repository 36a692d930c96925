# SPDX-License-Identifier: Apache-2.0
"""The lanes of each thread of the host: lines of Python, samples, calls, ranges."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.host.activity import ActivityKind, call_kinds
from profiling_lab.analysis.ranges.nesting import depths
from profiling_lab.report.html.lane import Lanes, SliceKind
from profiling_lab.report.lines.lines import shown_place
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I32, U8, dense, rows_of, unique
from profiling_lab.trace.extras import HostSamples
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import Phase

THREADS_AT_MOST = 64
DEPTH_AT_MOST = 16


class ThreadLanes:
    """Adds them to `out`. `own`: see Ownership. `samples`: with Python stacks."""

    def __init__(self, trace: Trace, own: tuple[str, ...], samples: HostSamples, out: Lanes) -> None:
        self.trace, self.out = trace, out
        self.own_row = trace.stacks.own_rows(Ownership(own))
        low, time_ns = out.origin_ns, samples.time_ns
        self._samples = rows_of(samples, (time_ns >= low) & (time_ns <= low + out.span_ns))

    def add(self) -> None:
        trace = self.trace
        tables = (trace.calls, trace.ranges, self._samples)
        thread = np.concatenate([table.thread for table in tables])
        process = np.concatenate([table.process for table in tables])
        if not len(thread):
            return
        count = np.bincount(thread)
        first_row = np.zeros(len(count), dtype=np.int64)
        first_row[thread[::-1]] = np.arange(len(thread))[::-1]
        pids = [trace.pids[p] for p in process[first_row].tolist()]
        # Main threads first, since that is where people look first; the others by their number of events.
        is_main = np.array([tid == pid for tid, pid in zip(trace.tids, pids, strict=False)])
        busiest = np.lexsort((-count, ~is_main, count == 0))[: int((count > 0).sum())]
        if len(busiest) > THREADS_AT_MOST:
            left = int(count[busiest[THREADS_AT_MOST:]].sum())
            self.out.notes.append(
                f"{len(busiest) - THREADS_AT_MOST} threads with the fewest events are not shown: "
                f"{left:,} calls, ranges and samples"
            )
        several = len(unique(process)) > 1
        deep = 0
        for number in busiest[:THREADS_AT_MOST].tolist():
            pid, tid = pids[number], trace.tids[number]
            of = f" · pid {pid}" if several else ""
            self.out.groups.append(f"thread {tid}{' (main)' if tid == pid else ''}{of}")
            self._line_lane(number)
            self._sample_lane(number)
            self._call_lanes(number)
            deep += self._range_lanes(number)
        if deep:
            self.out.notes.append(f"{deep:,} ranges nested deeper than {DEPTH_AT_MOST} levels are not shown")

    @cached_property
    def _sample_places(self) -> I32:
        """Per sample its place, as a number of the page's names."""
        samples = self._samples
        return self.out.names.add_all(samples.places)[samples.place]

    def _sample_lane(self, thread: int) -> None:
        """Runs of samples at one place. Each stands for the usual time to the next one and no longer: where
        no sample was taken, nothing is known.
        """
        samples = self._samples
        rows = np.flatnonzero(samples.thread == thread)
        if not len(rows):
            return
        rows = rows[np.argsort(samples.time_ns[rows], kind="stable")]
        time_ns, name = samples.time_ns[rows], self._sample_places[rows]
        between = np.diff(time_ns)
        usual_ns = max(1, int(np.median(between))) if len(between) else 1
        last = time_ns + np.minimum(usual_ns, np.append(between, usual_ns))
        new = (name[1:] != name[:-1]) | (between > 2 * usual_ns)
        starts = np.flatnonzero(np.append(True, new))
        ends = np.append(starts[1:], len(rows)) - 1
        self.out.add(
            "samples",
            "samples of Python",
            np.arange(len(starts)),
            time_ns[starts],
            last[ends],
            name[starts],
            np.full(len(starts), SliceKind.LINE, dtype=np.uint8),
            np.zeros(len(starts), dtype=np.int32),
            samples=ends - starts + 1,
        )

    def _call_lanes(self, thread: int) -> None:
        calls = self.trace.calls
        name, tint, depth = self._of_calls
        rows = np.flatnonzero(calls.thread == thread)
        for level, here in _by_depth(rows, depth):
            label = "calls inside calls" if level else "CUDA calls"
            self.out.add("calls", label, here, calls.start_ns, calls.end_ns, name, tint, calls.stack)

    @cached_property
    def _of_calls(self) -> tuple[I32, U8, I32]:
        """Per call its name, its tint, and whether it is inside of another one."""
        calls = self.trace.calls
        kinds = call_kinds(calls)
        tint = np.where(kinds == ActivityKind.WAIT, SliceKind.WAIT, SliceKind.CALL)
        tint = np.where(
            np.isin(kinds, (ActivityKind.ALLOCATOR, ActivityKind.CODE_LOADING)), SliceKind.ALLOCATION, tint
        )
        depth = depths(calls.start_ns, calls.end_ns, calls.thread)
        name = self.out.names.add_all(calls.names)[calls.name]
        return name, tint.astype(np.uint8), np.minimum(depth, 1)

    def _range_lanes(self, thread: int) -> int:
        """The lanes of a thread's ranges by depth; says how many ranges are too deep for one."""
        ranges, deep = self.trace.ranges, 0
        name, tint, lane, keys, depth = self._of_ranges
        noun = "operators" if self.trace.recorder == "torch.profiler" else "NVTX"
        for number in [i for i, key in enumerate(keys) if key >> 32 == thread]:
            rows = np.flatnonzero((lane == number) & self._in_sight)
            if not len(rows):
                continue
            deep += int((depth[rows] >= DEPTH_AT_MOST).sum())
            domain = ranges.domains.get(int(ranges.domain[rows[0]]), "")
            for level, here in _by_depth(rows[depth[rows] < DEPTH_AT_MOST], depth):
                label = f"{domain or noun}{f' · level {level + 1}' if level else ''}"
                self.out.add("ranges", label, here, ranges.start_ns, ranges.end_ns, name, tint, ranges.stack)
        return deep

    @cached_property
    def _in_sight(self) -> npt.NDArray[np.bool_]:
        """Per range, whether the timeline shows it: all are, but of a part of a trace."""
        ranges, low = self.trace.ranges, self.out.origin_ns
        if not self.trace.window:
            return np.ones(len(ranges), dtype=bool)
        inside: npt.NDArray[np.bool_] = (ranges.start_ns < low + self.out.span_ns) & (ranges.end_ns > low)
        return inside

    @cached_property
    def _of_ranges(self) -> tuple[I32, U8, I32, list[int], I32]:
        """Per range its name and tint, its number among (thread, domain), which these are, and its depth."""
        ranges = self.trace.ranges
        # Ranges of different domains do not nest in each other.
        lane, keys = dense(ranges.thread.astype(np.int64) << 32 | (ranges.domain & 0xFFFFFFFF))
        depth = depths(ranges.start_ns, ranges.end_ns, lane)
        tint = np.full(len(ranges), SliceKind.RANGE, dtype=np.uint8)
        return self.out.names.add_all(ranges.names)[ranges.name], tint, lane, keys.tolist(), depth

    def _line_lane(self, thread: int) -> None:
        """Runs of calls that one line in user code made: from the first start to the last end."""
        trace, calls = self.trace, self.trace.calls
        rows = np.flatnonzero(calls.thread == thread)
        stack, backward = self._answers
        line = self.own_row[stack]
        rows = rows[line[rows] > 0]
        if not len(rows):
            return
        rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
        key = trace.stacks.frame[line[rows]].astype(np.int64) * 2 + backward[rows]
        starts = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
        ends = np.append(starts[1:], len(rows)) - 1
        numbers, distinct = dense(key[starts])
        named = []
        for value in distinct.tolist():
            frame = trace.stacks.frames[value >> 1]
            where = shown_place(frame)
            text = f"backward of {where}" if value & 1 else where
            named.append(self.out.names.add(text, f"{text} {frame.function}"))
        end_ns = np.maximum.reduceat(calls.end_ns[rows], starts)
        self.out.add(
            "line",
            "Python line",
            np.arange(len(starts)),
            calls.start_ns[rows[starts]],
            end_ns,
            np.array(named, dtype=np.int32)[numbers],
            np.where(key[starts] & 1, SliceKind.BACKWARD, SliceKind.LINE).astype(np.uint8),
            line[rows[starts]],
            calls=(ends - starts + 1),
        )

    @cached_property
    def _answers(self) -> tuple[I32, npt.NDArray[np.bool_]]:
        """Per call the stack it is attributed to, in backward that of the forward line, and whether it is."""
        calls = self.trace.calls
        stack, backward = calls.stack.copy(), np.zeros(len(calls), dtype=bool)
        if len(self.trace.operations):
            found = self.trace.attribution
            known = (found.call >= 0) & (found.stack > 0)
            stack[found.call[known]] = found.stack[known]
            backward[found.call[known]] = found.phase[known] == Phase.BACKWARD
        return stack, backward


def _by_depth(
    rows: npt.NDArray[np.intp], depth: npt.NDArray[np.integer]
) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    for level in unique(depth[rows]).tolist():
        yield level, rows[depth[rows] == level]
