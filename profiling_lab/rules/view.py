# SPDX-License-Identifier: Apache-2.0
"""The data that rules look at: the columns of a trace, lines, and the waits that several rules share.

Everything is computed on first use, over whole columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.busy import Busy
from profiling_lab.analysis.critical_path.savings import Saving
from profiling_lab.analysis.device_spans import span_ns
from profiling_lab.analysis.gaps.causes import Cause
from profiling_lab.analysis.gaps.pieces import GapPieces, gap_pieces
from profiling_lab.analysis.gaps.wait_cost import WaitCosts, late_idle, wait_costs
from profiling_lab.analysis.host.waits import AT_ONCE_NS, VALUE_BYTES, host_waits
from profiling_lab.analysis.memory.devices import DeviceMemory
from profiling_lab.analysis.ncu.report import Report
from profiling_lab.analysis.places import LineNumbers
from profiling_lab.analysis.stats import grouped
from profiling_lab.records import replace
from profiling_lab.rules.finding import (
    EVIDENCE_AT_MOST,
    FROM_THE_START,
    STACKS,
    Abstain,
    Confidence,
    Event,
    Finding,
    Threshold,
    percent,
)
from profiling_lab.trace import Frame, Trace
from profiling_lab.trace.attribution import Attribution
from profiling_lab.trace.columns import (
    FARTHEST_NS,
    I32,
    I64,
    Calls,
    OperationKind,
    Operations,
    Overheads,
    Ranges,
    unique,
)
from profiling_lab.trace.cuda_calls import SYNCS, CudaCall, are_any
from profiling_lab.trace.extras import HostSamples
from profiling_lab.trace.operation_classes import OperationClass, device_tracks
from profiling_lab.trace.spans import Spans
from profiling_lab.trace.step_windows import StepWindows, step_windows

Mask: TypeAlias = npt.NDArray[np.bool_]
F64: TypeAlias = npt.NDArray[np.float64]

LONG_LAUNCH_NS = 500_000
_LAUNCHING = (Cause.HOST_CODE, Cause.CUDA_CALL, Cause.LATENCY, Cause.BETWEEN)
MANY_STEPS, ALL_FRAC = 8, 0.95
ENOUGH_FRAC = 0.5  # with more than half unknown, "nothing found" would not be reliable


class View(LineNumbers):
    """A trace, and which code in it is the user's own."""

    def __init__(self, trace: Trace, own: tuple[str, ...] = (), steps_by: str | None = None) -> None:
        super().__init__(trace, own)
        self.steps_by = steps_by
        self.report: Report | None = None  # of Nsight Compute, for the rules about counters
        self.settings: Mapping[str, float] = {}
        """the user's settings for the current rule, by threshold name"""
        self._by_pattern: dict[str, Mask] = {}

    def __getitem__(self, threshold: Threshold) -> float:
        """The threshold's value: the user's setting, or the default."""
        return self.settings.get(threshold.name, threshold.value)

    @property
    def operations(self) -> Operations:
        return self.trace.operations

    @cached_property
    def calls(self) -> Calls:
        """The trace's calls, with times clamped so that differences do not overflow in damaged files."""
        calls = self.trace.calls
        inside = np.clip(calls.start_ns, -FARTHEST_NS, FARTHEST_NS)
        return replace(calls, start_ns=inside, end_ns=np.clip(calls.end_ns, inside, FARTHEST_NS))

    @property
    def attribution(self) -> Attribution:
        return self.trace.attribution

    @cached_property
    def kernels(self) -> Mask:
        return np.asarray(self.operations.kind == OperationKind.KERNEL)

    @cached_property
    def copies(self) -> Mask:
        return np.asarray(self.operations.kind == OperationKind.COPY)

    @property
    def classes(self) -> I32:
        """OperationClass per operation."""
        return self.trace.classes

    @cached_property
    def devices(self) -> tuple[tuple[int, int, I64], ...]:
        """The GPUs with operations: process, CUDA ordinal, and the rows of its operations."""
        track, devices = device_tracks(self.operations)
        return tuple((*devices[number], rows) for number, rows in grouped(np.arange(len(track)), track))

    def busy(self, rows: npt.NDArray[np.integer]) -> Busy:
        """The intervals in which any of these operations ran."""
        return Busy.of(self.operations.start_ns[rows], self.operations.end_ns[rows])

    @cached_property
    def gpu_ns(self) -> int:
        """The sum of all GPU time; at least 1, because shares are computed from it."""
        return max(int(self.operations.duration_ns.sum()), 1)

    @cached_property
    def span_ns(self) -> int:
        """From the first operation's start to the last one's end, without excluded parts; at least 1, because
        shares are computed from it.
        """
        return max(span_ns(self.trace), 1)

    @cached_property
    def processes(self) -> dict[int, Busy]:
        """The intervals in which any GPU of each process was busy."""
        operations = self.operations
        of = {int(p): np.flatnonzero(operations.process == p) for p in unique(operations.process)}
        return {p: self.busy(rows).filled(self.unknown(p)) for p, rows in of.items()}

    def unknown(self, process: int) -> Spans:
        """Intervals of a process that do not count as idle, because nothing was recorded: pauses of the
        recording, and the time between the parts of a window.
        """
        number = np.array([process], dtype=np.int32)
        always = (np.array([-FARTHEST_NS]), np.array([FARTHEST_NS]))
        looked_at = Spans.of(number, *always)
        if self.trace.window is not None:
            looked_at = looked_at.intersect(self.trace.window.gpu)
        row, start_ns, end_ns = self.trace.pauses.spans.cut_out(
            looked_at.process, looked_at.start_ns, looked_at.end_ns
        )
        known = Spans.of(looked_at.process[row], start_ns, end_ns)
        row, start_ns, end_ns = known.cut_out(number, *always)
        return Spans.of(number[row], start_ns, end_ns)

    @cached_property
    def memories(self) -> tuple[DeviceMemory, ...] | Abstain:
        """What torch's allocator did on each GPU, in the whole recording."""
        found = self.trace.whole.source.memory_history()
        if not found:
            return Abstain(
                "the recording has no history of torch's allocator", "`profiling-lab record --memory`"
            )
        return tuple(DeviceMemory(self.trace.whole, each, self.ownership.paths) for each in found)

    def near(self, time_ns: int) -> npt.NDArray[np.intp]:
        """The operation that began nearest to a time: the evidence for what happened in memory."""
        return np.array([np.argmin(np.abs(self.operations.start_ns.astype(np.float64) - time_ns))])

    @cached_property
    def late_idle(self) -> dict[int, Busy]:
        """Per process, the idle time of its GPUs in which the host could have launched earlier."""
        return {p: late_idle(self.gap_pieces, p, busy) for p, busy in self.processes.items()}

    @cached_property
    def host_wait_idle(self) -> I64:
        """Per call, the GPU idle time that it caused; 0 for calls that do not wait for the GPU."""
        cost = np.zeros(len(self.calls), dtype=np.int64)
        for rows, costs in self._waits.values():
            cost[rows] = costs.each_ns
        return cost

    @cached_property
    def _waits(self) -> dict[int, tuple[npt.NDArray[np.intp], WaitCosts]]:
        reads = self.named("memcpy DtoH") & (self.operations.size_bytes <= VALUE_BYTES) & self.has_call
        copies = unique(self.attribution.call[reads])
        copies = copies[self.waits_at_once(copies) >= 0]
        return {process: self.wait_costs(process, copies) for process in self.processes}

    def wait_costs(
        self, process: int, copies: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.intp], WaitCosts]:
        """The calls of a process that wait for the GPU, and what each costs. `copies`: calls that count as
        waits from their begin until the wait that ends them.
        """
        calls, after = self.calls, self.waits_at_once(copies)
        waits, start_ns = self._holds.copy(), calls.start_ns.copy()
        waits[copies] = after < 0
        ends_one = after >= 0
        waits[after[ends_one]] = True
        start_ns[after[ends_one]] = calls.start_ns[copies[ends_one]]
        rows = np.flatnonzero(waits & (calls.process == process))
        busy, late = self.processes[process], self.late_idle[process]
        return rows, wait_costs(busy, late, start_ns[rows], calls.end_ns[rows])

    @cached_property
    def waits(self) -> npt.NDArray[np.intp]:
        """The calls that held their thread until the GPU had got somewhere."""
        return np.flatnonzero(self._holds)

    def wait_place(self, waits: npt.NDArray[np.integer]) -> I32:
        """Per waiting call the number of its line. In backward only what launches something has a line, so
        there it is that of the copy that the wait ends.
        """
        place, of_copy = self.call_place[waits], np.append(self.call_place, -1)[self.copy_before[waits]]
        return np.asarray(np.where(place >= 0, place, of_copy), dtype=np.int32)

    @cached_property
    def _holds(self) -> Mask:
        """Per call, whether it held its thread until the GPU had got somewhere."""
        waits = host_waits(self.trace, self.trace.syncs).call
        holds = np.zeros(len(self.calls), dtype=bool)
        holds[waits[waits >= 0]] = True
        return holds

    @cached_property
    def copy_before(self) -> I64:
        """Per call the copy from or to the host that it waits for, as made by `.to(device)`, `.cpu()` and
        `.item()`: the call right before it on its thread; -1 none.
        """
        host_side = np.isin(self.classes, (OperationClass.HOST_TO_DEVICE, OperationClass.DEVICE_TO_HOST))
        copies = unique(self.attribution.call[host_side & self.has_call])
        after, before = self.waits_at_once(copies), np.full(len(self.calls), -1, dtype=np.int64)
        before[after[after >= 0]] = copies[after >= 0]
        return before

    def waits_at_once(self, calls: npt.NDArray[np.integer]) -> I64:
        """Per call the wait that its thread made right after it, -1 if the thread did something else first.

        A profiler may delay the wait. With the same stack they belong together, however late it comes.
        """
        after, stack = self.next_call[calls], self.calls.stack
        soon = self.calls.start_ns[after] - self.calls.end_ns[calls] <= AT_ONCE_NS
        soon |= (stack[after] > 0) & (stack[after] == stack[calls])
        return np.where(self.calls_of(*SYNCS)[after] & soon, after, -1)

    @cached_property
    def next_call(self) -> I64:
        """Per call the row of the next call on its thread, -1 after the last."""
        calls = self.calls
        order = np.lexsort((calls.start_ns, calls.thread))
        same = calls.thread[order[1:]] == calls.thread[order[:-1]]
        follower = np.full(len(calls), -1, dtype=np.int64)
        follower[order[:-1][same]] = order[1:][same]
        return follower

    @cached_property
    def steps(self) -> StepWindows | None:
        """The steps of all processes; None if the trace has none."""
        found = step_windows(self.trace, self.steps_by)
        return None if found.sign == "window" else found

    @cached_property
    def whole_steps(self) -> StepWindows:
        """The steps of the whole recording, also of its start-up."""
        return step_windows(self.trace.whole, self.steps_by)

    @cached_property
    def gap_pieces(self) -> GapPieces:
        """The idle time of the GPUs, split by host activity."""
        return gap_pieces(self.trace)

    @cached_property
    def samples(self) -> HostSamples:
        """The samples of the host's Python threads."""
        return self.trace.whole.samples(self.ownership)

    @cached_property
    def launching_idle_by_line(self) -> I64:
        """The GPU's idle time in short pauses between launches, by the line number of the next launch. What a
        wait of the host cost is not part of it.
        """
        pieces = self.gap_pieces
        idle_ns = pieces.end_ns - pieces.start_ns
        short = np.isin(pieces.cause, _LAUNCHING) & (idle_ns < LONG_LAUNCH_NS) & (pieces.stack > 0)
        place = np.where(short, self.place_of_stack(pieces.stack), -1)
        left_ns = idle_ns * self.left_without_waits(pieces)
        return np.bincount(place[place >= 0], weights=left_ns[place >= 0], minlength=self.lines).astype(
            np.int64
        )

    def left_without_waits(self, pieces: GapPieces) -> npt.NDArray[np.float64]:
        """Per piece of idle time the fraction of it that would remain if the host waited for nothing."""
        left = np.ones(len(pieces.start_ns))
        for process, (_, costs) in self._waits.items():
            mine = pieces.process == process
            left[mine] = costs.left_at(pieces.start_ns[mine])
        left[pieces.cause == Cause.BETWEEN] = 1.0
        return left

    @cached_property
    def function_of_line(self) -> I32:
        """Per line number that of its function; -1 last, for operations without a line."""
        frames = (self.place(line) for line in range(self.lines))
        names = [(frame.file, frame.function) if frame else ("", "") for frame in frames]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return np.array([*(numbers[name] for name in names), -1], dtype=np.int32)

    @cached_property
    def knows_python(self) -> bool:
        """Whether the trace has Python stacks or torch operators."""
        operators = (name for name in self.trace.ranges.names if re.match(r"(aten|autograd)::", name))
        return len(self.trace.stacks) > 1 or next(operators, None) is not None

    def calls_inside(self, file_end: str, range_name: str) -> Mask:
        """Per call, whether it was made inside functions of this file or inside ranges of this name."""
        inside: Mask = np.asarray(self.trace.stacks.passes_through((file_end,))[self.calls.stack] > 0)
        ranges = self.trace.ranges
        hits = np.array([re.search(range_name, name) is not None for name in ranges.names] or [False])
        for process, rows in grouped(np.flatnonzero(hits[ranges.name]), ranges.process[hits[ranges.name]]):
            around = Busy.of(ranges.start_ns[rows], ranges.end_ns[rows])
            inside |= (self.calls.process == process) & around.holds(self.calls.start_ns)
        return inside

    def of_process(self, process: int) -> str:
        """` (pid 12)` if there are several processes, to distinguish their findings."""
        return f" (pid {self.trace.pids[process]})" if len(self.processes) > 1 else ""

    def called(self, pattern: str) -> Mask:
        """Per call, whether its name matches."""
        hits = [re.search(pattern, name) is not None for name in self.calls.names]
        return np.array([*hits, False], dtype=bool)[self.calls.name]

    def calls_of(self, *kinds: CudaCall) -> Mask:
        """Per call, whether it is of one of these kinds."""
        return are_any(self.calls, kinds)

    def launched_by(self, pattern: str) -> Mask:
        """Per operation, whether its call was recorded and its name matches."""
        return np.append(self.called(pattern), False)[self.attribution.call]

    @property
    def has_call(self) -> Mask:
        return np.asarray(self.attribution.call >= 0)

    def kernels_named(self, pattern: str) -> Mask:
        """Per operation, whether it is a kernel whose full name matches. Rules share it: do not change it.
        A pattern without capitals ignores case, three times as fast as with (?i)."""
        if (mask := self._by_pattern.get(pattern)) is None:
            names = map(str.lower, self.operations.names) if pattern.islower() else self.operations.names
            hits = [re.search(pattern, name) is not None for name in names]
            mask = np.asarray(self.kernels & np.array([*hits, False], dtype=bool)[self.operations.name])
            mask.flags.writeable = False
        return self._by_pattern.setdefault(pattern, mask)

    def named(self, *names: str) -> Mask:
        """Per operation, whether it has one of these names."""
        hits = [name in names for name in self.operations.names]
        return np.array([*hits, False], dtype=bool)[self.operations.name]

    def call_ns(self, operation_rows: I64) -> I64:
        """How long the calls of these operations took; 0 if the call is not known."""
        return np.asarray(self._took_ns[self.attribution.call[operation_rows]], dtype=np.int64)

    @cached_property
    def _took_ns(self) -> I64:
        """The duration per call. The last entry is for operations without a call, whose row is -1."""
        return np.append(self.calls.end_ns - self.calls.start_ns, 0)

    def too_few_lines(self, question: str) -> Abstain | None:
        """Abstain if most of the GPU time has no line, because then 'nothing found' means nothing."""
        with_line = int(self.operations.duration_ns[self.operation_place >= 0].sum())
        covered = with_line / self.gpu_ns
        if covered >= ENOUGH_FRAC:
            return None
        return Abstain(
            f"{percent(covered)} of the GPU time has a line of your code: too little to say {question}",
            STACKS,
        )

    def too_few_calls(self, operations: Mask, what: str) -> Abstain | None:
        """Abstain if the calls of most of these operations were not recorded."""
        number, known = int(operations.sum()), int((operations & self.has_call).sum())
        if known >= ENOUGH_FRAC * number:
            return None
        return Abstain(
            f"the calls of {number - known:,} of {number:,} {what} were not recorded, because they were "
            "made before the recording began",
            FROM_THE_START,
        )

    def finding(
        self,
        what: str,
        *,
        cost_ns: int,
        cost_of: str,
        place: Frame | None,
        rows: npt.NDArray[np.integer],
        weight: I64,
        remedy: str,
        table: str = "operations",
        confidence: Confidence = "high",
        cause: str = "",
        once: bool = False,
        wins_frac: float | None = None,
        saving: Saving | None = None,
        elsewhere: bool = False,
        around: Frame | None = None,
    ) -> Finding:
        """A finding whose events are `rows` of a table of the trace, with the `weight` of each."""
        return Finding(
            what=what,
            cost_ns=cost_ns,
            cost_of=cost_of,
            place=place,
            evidence=self.evidence(table, rows, weight),
            events=len(rows),
            remedy=remedy,
            confidence=confidence,
            cause=cause,
            once=once or self.in_one_step(self._table(table).start_ns[rows], weight),
            wins_frac=wins_frac,
            saving=saving,
            elsewhere=elsewhere,
            around=around,
            per_step_ns=self._per_step_ns(cost_ns, table, rows, weight),
            gpu_ns_by_line=self._gpu_ns_by_line(rows) if table == "operations" else (),
        )

    def _gpu_ns_by_line(self, rows: npt.NDArray[np.integer]) -> tuple[tuple[int, int], ...]:
        lines, place = np.unique(self.operation_place[rows], return_inverse=True)
        gpu_ns = np.bincount(place, weights=self.operations.duration_ns[rows], minlength=len(lines))
        return tuple(zip(lines.tolist(), gpu_ns.astype(np.int64).tolist(), strict=True))

    def _per_step_ns(
        self, cost_ns: int, table: str, rows: npt.NDArray[np.integer], weight: I64
    ) -> int | None:
        """The cost per step, between the start of the first step and the end of the last. Work between two
        steps counts too. The cost is distributed like the weights of the events.
        """
        steps = self.steps
        if steps is None or not len(rows):
            return None
        start_ns, process = self._table(table).start_ns[rows], self._table(table).process[rows]
        # The host makes the calls of a step before the GPU runs them.
        began, ended = steps.host_start_ns, steps.host_end_ns
        if table == "operations":
            began, ended = steps.start_ns, steps.end_ns
        share = weight / weight.sum() if weight.any() else np.full(len(rows), 1 / len(rows))
        inside, number = 0.0, 0
        for each in unique(process).tolist():
            mine, its = process == each, np.flatnonzero(steps.process == each)
            if not len(its):
                continue
            within = (start_ns[mine] >= began[its[0]]) & (start_ns[mine] < ended[its[-1]])
            inside += float(share[mine][within].sum())
            number += len(its)
        return min(round(cost_ns * inside / number), self.longest_step_ns) if number else None

    def in_one_step(self, start_ns: I64, weight: I64) -> bool:
        """Whether one of many steps has all of the weight of events that start at these times."""
        steps = self.steps
        if steps is None or len(steps) < MANY_STEPS or len(unique(steps.process)) > 1 or not weight.any():
            return False
        step = np.searchsorted(steps.start_ns, start_ns, "right")  # 0: before the first
        in_step = np.bincount(step, weights=weight, minlength=2)[1:]
        return bool(in_step.max() >= ALL_FRAC * weight.sum())

    @cached_property
    def longest_step_ns(self) -> int:
        """From the start of a step to the start of the next in its process, or to the end of the recording.
        An event of a step may begin before the first step.
        """
        steps, last = self.steps, int(self.operations.end_ns.max())
        if steps is None:
            return 0
        until = np.maximum(steps.end_ns, last)
        same = steps.process[1:] == steps.process[:-1]
        until[:-1][same] = np.maximum(steps.start_ns[1:], steps.end_ns[:-1])[same]
        return int((until - steps.start_ns).max())

    def _table(self, name: str) -> Operations | Calls | Ranges | Overheads:
        if name in ("operations", "calls"):
            return self.operations if name == "operations" else self.calls
        return self.trace.overheads if name == "overheads" else self.trace.ranges

    def evidence(self, table: str, rows: npt.NDArray[np.integer], weight: I64) -> tuple[Event, ...]:
        """The `rows` with the largest weights, as rows of the whole trace. `weight` has one entry per row."""
        largest = rows[np.argsort(-weight, kind="stable")[:EVIDENCE_AT_MOST]]
        start_ns = self._table(table).start_ns
        if self.trace.window is not None and table != "overheads":
            whole = self.trace.whole
            columns: dict[str, tuple[npt.NDArray[np.intp], Operations | Calls | Ranges]] = {
                "operations": (self.trace.operation_rows, whole.operations),
                "calls": (self.trace.call_rows, whole.calls),
                "ranges": (self.trace.range_rows, whole.ranges),
            }
            largest, start_ns = columns[table][0][largest], columns[table][1].start_ns
        return tuple(Event(table, row, int(start_ns[row])) for row in largest.tolist())
