# SPDX-License-Identifier: Apache-2.0
"""One recording as a table of steps: what each line and kernel took in each, and why the GPU was idle."""

from __future__ import annotations

import re
from dataclasses import field

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.coverage import Coverage, coverage
from profiling_lab.analysis.diff.shapes import ElementwiseShape, elementwise_shapes
from profiling_lab.analysis.gaps.causes import CAUSES, Cause
from profiling_lab.analysis.gaps.pieces import gap_pieces
from profiling_lab.analysis.info import info
from profiling_lab.analysis.lines_groups import own_frames
from profiling_lab.analysis.memory.held import PeakMemory, held_if_recorded
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I32, I64, OperationKind, combined, dense, unique
from profiling_lab.trace.facts import TraceInfo
from profiling_lab.trace.operation_classes import OperationClass
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.step_windows import StepWindows, step_windows
from profiling_lab.trace.trace import Trace

IDLE = "idle"
AT_THE_EDGE = "before the first or after the last operation"
_UNTOLD = "of several devices"
_TEMPLATE = re.compile(r"<.*", re.DOTALL)
_OPERATOR = re.compile(r"\w+::\w")
_MOST_SHAPES = 1000


@dataclass(frozen=True, slots=True, order=True)
class LineInPhase:
    """A line of the program in one phase. What has no line has '' and 0."""

    file: str
    function: str
    line: int
    phase: str
    """'forward' (everything outside of backward), 'backward', 'unknown', or IDLE: the line held the GPU up"""
    operator: str = ""
    """the operator of torch around the launch, with the shapes of its inputs where they are known; '' where
    none was recorded"""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a recording comes from, and what decides whether it may be compared. '' and None: unknown."""

    path: str
    gpus: tuple[str, ...]
    """names of the machine's GPUs"""
    driver: str
    method: str
    """how it was recorded"""
    overhead_frac: float | None
    """time the recorder took from the program while it ran, as a share"""
    sign: str
    """by what the steps were found, as in StepWindows"""
    how: str
    own: tuple[str, ...]
    """what counts as the user's code"""
    steps_by: str
    coverage: Coverage
    shapes: tuple[ElementwiseShape, ...]
    window: str
    """the part of the recording that is compared, '' for all of it"""
    asked: str
    """the options that asked for this part"""
    saved: str = ""
    """of a baseline the file that holds it"""


@dataclass(frozen=True, slots=True)
class Capture:
    """A recording, cut into steps; those of all its processes. Times are clipped to the steps, so that the
    parts of each step add up to the nanosecond: sum of `part_ns` + `twice_ns` = `whole_ns`.
    """

    origin: Origin
    step_ns: I64
    """per step: how long it took"""
    whole_ns: I64
    """per step: the same on every device of its process"""
    places: tuple[tuple[LineInPhase, str], ...]
    """columns of `part_ns`: a place and the base name of a kernel, or a cause of idle time"""
    part_ns: I64
    """(steps, places)"""
    twice_ns: I64
    """per step, negative or 0: time that several operations of one device share"""
    input_bytes: int
    """what the whole recording copied from the host to the GPU in a step, on average"""
    devices: int
    """that worked in any step"""
    source: dict[tuple[str, int], str] = field(default_factory=dict)
    """by file and line the text of lines of `places`, as far as the recording has it"""
    memory: PeakMemory | None = None
    """of the whole recording; None if it holds no memory"""

    def __len__(self) -> int:
        return len(self.step_ns)

    @property
    def has_steps(self) -> bool:
        return self.origin.sign != "window"


def base_name(short_name: str) -> str:
    """A kernel's name without template arguments: they change with every retuning."""
    return _TEMPLATE.sub("", short_name) or short_name


def measure(
    trace: Trace, own: tuple[str, ...] = (), steps_by: str | None = None, *, whole: bool = False
) -> Capture:
    """Cut a trace into steps. `own`, `steps_by` and `whole`: as for Ownership and step_windows.

    Raises NotEnoughDataError in a trace without GPU operations, or without a range that `steps_by` matches.
    """
    windows = step_windows(trace, steps_by, whole=whole)
    operations = trace.operations
    own_row = trace.stacks.own_rows(Ownership(own))
    places, place = _places(trace, own_row)
    device, _ = dense(operations.process.astype(np.int64) << 32 | operations.device)
    step_ns = windows.end_ns - windows.start_ns
    part_ns = np.zeros((len(windows), len(places)), dtype=np.int64)
    busy_ns, whole_ns = np.zeros_like(step_ns), np.zeros_like(step_ns)
    devices = 0
    for process in unique(windows.process).tolist():
        steps = windows.process == process
        bounds = (windows.start_ns[steps], windows.end_ns[steps])
        for number in unique(device[operations.process == process]).tolist():
            mine = device == number
            start_ns, end_ns = operations.start_ns[mine], operations.end_ns[mine]
            parts = _clipped(start_ns, end_ns, bounds, place[mine], len(places))
            if not parts.any():  # a device that does nothing in any step takes no part in it
                continue
            start_ns, end_ns = _analysis.merged(start_ns, end_ns)
            busy = _clipped(start_ns, end_ns, bounds, np.zeros(len(start_ns), np.int32), 1)
            part_ns[steps] += parts
            busy_ns[steps] += busy[:, 0]
            whole_ns[steps] += step_ns[steps]
            devices += 1
    twice_ns = busy_ns - part_ns.sum(axis=1)
    causes, idle_ns = _idle(trace, own_row, windows, whole_ns - busy_ns)
    lines = {(place.file, place.line) for place, _ in (*places, *causes)}
    return Capture(
        origin=_origin(trace, windows, own, steps_by, coverage(trace, own_row)),
        step_ns=step_ns,
        whole_ns=whole_ns,
        places=(*places, *causes),
        part_ns=np.concatenate([part_ns, idle_ns], axis=1),
        twice_ns=twice_ns,
        input_bytes=_input_bytes(trace, len(windows)),
        devices=devices,
        source={line: text for line, text in trace.source_texts.items() if line in lines},
        memory=held_if_recorded(trace, own),
    )


def _origin(
    trace: Trace, windows: StepWindows, own: tuple[str, ...], steps_by: str | None, covered: Coverage
) -> Origin:
    facts = info(trace)
    stacks = "with" if len(trace.stacks) > 1 else "without"
    link = f"backward joined by {trace.attribution.link}" if trace.attribution.link else "backward not joined"
    graphs = ", graphs as a whole" if (trace.operations.kind == OperationKind.GRAPH).any() else ""
    return Origin(
        path=str(trace.path),
        gpus=tuple(gpu.name for gpu in facts.gpus),
        driver=facts.driver,
        method=f"{trace.recorder} {stacks} Python stacks, {link}{graphs}",
        overhead_frac=_overhead_frac(facts),
        sign=windows.sign,
        how=windows.how,
        own=own,
        steps_by=steps_by or "",
        coverage=replace(covered, window=None),
        shapes=elementwise_shapes(trace),
        window=covered.window.text if covered.window else "",
        asked=" ".join(f"--{k} {v}" for k, v in covered.window.asked) if covered.window else "",
    )


def _overhead_frac(facts: TraceInfo) -> float | None:
    noted = dict(facts.recorder)
    try:
        callbacks = int(noted["overhead_callback_ns"]) * int(noted["calls"])
        return callbacks / (float(noted["seconds"]) * 1e9)
    except (KeyError, ValueError, ZeroDivisionError):
        pass
    if facts.overhead_ns is None or not facts.duration_ns:
        return None
    return facts.overhead_ns / facts.duration_ns


def _places(trace: Trace, own_row: I32) -> tuple[list[tuple[LineInPhase, str]], I32]:
    """The distinct (place, kernel) pairs, and per operation the number of its own."""
    operations, found = trace.operations, trace.attribution
    operator, operators = _operators(trace)
    pair, pairs = dense(operations.name.astype(np.int64) << 32 | operator)
    combined = (pair.astype(np.int64) << 34) | (own_row[found.stack].astype(np.int64) << 2)
    number, distinct = dense(combined | found.phase)
    merged: dict[tuple[LineInPhase, str], int] = {}
    new_number = np.empty(len(distinct), dtype=np.int32)
    for i, value in enumerate(distinct.tolist()):
        name, around = divmod(int(pairs[value >> 34]), 1 << 32)
        row, phase = (value >> 2) & 0xFFFFFFFF, Phase(value & 3).name.lower()
        place = replace(_place(trace, own_row, row, phase), operator=operators[around])
        key = (place, base_name(operations.short_names[name]))
        new_number[i] = merged.setdefault(key, len(merged))
    return list(merged), new_number[number]


def _operators(trace: Trace) -> tuple[I32, tuple[str, ...]]:
    """Per operation the number of the operator around its launch, and the operators, with the shapes of their
    inputs where they are known; the user's own ranges, whose names may hold the number of a step,
    are left out.
    """
    names = (*(name if _OPERATOR.match(name) else "" for name in trace.ranges.names), "")
    name = np.append(trace.ranges.name, np.int32(len(names) - 1))[trace.attribution.range]
    noted = trace.input_shapes
    if noted is None:
        return name, names
    shapes = (*noted.texts, "")
    shape = np.append(noted.number, np.int32(len(shapes) - 1))[trace.attribution.range]
    number, pairs = combined(name, shape)
    if len(pairs) > _MOST_SHAPES:  # another size in every step: no row would have a partner
        return name, names
    return number, tuple(f"{names[i]} {shapes[j]}".rstrip() if names[i] else "" for i, j in pairs)


def _idle(
    trace: Trace, own_row: I32, windows: StepWindows, idle_ns: I64
) -> tuple[list[tuple[LineInPhase, str]], I64]:
    """Idle time by its cause and the line the host was in or on its way to: columns, (steps, columns)."""
    pieces = gap_pieces(trace)
    combined = own_row[pieces.stack].astype(np.int64) << 8 | pieces.cause << 1 | pieces.exact
    number, distinct = dense(combined)
    merged: dict[tuple[LineInPhase, str], int] = {}
    new_number = np.empty(len(distinct), dtype=np.int32)
    for i, value in enumerate(distinct.tolist()):
        cause, exact = CAUSES[Cause(value >> 1 & 0x7F)], value & 1
        place = _place(trace, own_row, value >> 8, IDLE)
        told = (cause if exact else f"{cause} before") if place.file else cause
        new_number[i] = merged.setdefault((place, told), len(merged))
    column = new_number[number] if len(number) else number
    out = np.zeros((len(windows), len(merged)), dtype=np.int64)
    for process in unique(windows.process).tolist():
        steps, mine = windows.process == process, pieces.process == process
        bounds = (windows.start_ns[steps], windows.end_ns[steps])
        out[steps] = _clipped(pieces.start_ns[mine], pieces.end_ns[mine], bounds, column[mine], len(merged))
    edge_ns = idle_ns - out.sum(axis=1)
    edge = (LineInPhase("", "", 0, IDLE), AT_THE_EDGE)
    if (edge_ns < 0).any():  # gaps of a device that takes no part in the steps
        return [(edge[0], _UNTOLD)], idle_ns[:, None]
    return [*merged, edge], np.concatenate([out, edge_ns[:, None]], axis=1)


def _place(trace: Trace, own_row: I32, row: int, phase: str) -> LineInPhase:
    frames = own_frames(trace.stacks, own_row, row)
    return (
        LineInPhase(frames[0].file, frames[0].function, frames[0].line, phase)
        if frames
        else LineInPhase("", "", 0, phase)
    )


def _clipped(start_ns: I64, end_ns: I64, bounds: tuple[I64, I64], key: I32, keys: int) -> I64:
    """(windows, keys): how long the intervals of each key lie in each window."""
    opens, closes = bounds
    windows = len(opens)
    out = np.zeros(windows * keys, dtype=np.int64)
    first = np.searchsorted(closes, start_ns, side="right")
    last = np.searchsorted(opens, end_ns, side="left") - 1
    rows = np.flatnonzero(first <= last)
    at = first[rows]
    while len(rows):
        inside = np.minimum(end_ns[rows], closes[at]) - np.maximum(start_ns[rows], opens[at])
        np.add.at(out, at * keys + key[rows], inside)
        more = at < last[rows]  # few operations reach into the next window
        rows, at = rows[more], at[more] + 1
    return out.reshape(windows, keys)


def _input_bytes(trace: Trace, steps: int) -> int:
    """Over the whole recording: the next batch often travels while this step computes."""
    operations = trace.operations
    rows = trace.classes == OperationClass.HOST_TO_DEVICE
    return int(operations.size_bytes[rows].sum()) // max(steps, 1)
