# SPDX-License-Identifier: Apache-2.0
"""GPU time per line of Python, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from profiling_lab import _analysis
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I32, OperationKind, dense, full
from profiling_lab.trace.coverage import NSYS_STACK_FLAGS, Coverage, coverage
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.stacks import Frame, Stacks
from profiling_lab.trace.trace import Trace

By: TypeAlias = Literal["line", "function", "file", "module", "kernel", "range"]
PhaseFilter: TypeAlias = Literal["forward", "backward", "all"]
GROUPINGS: tuple[By, ...] = get_args(By)
PHASES: tuple[PhaseFilter, ...] = get_args(PhaseFilter)
_NEEDS_STACKS = ("line", "function", "file", "module")


@dataclass(frozen=True, slots=True)
class LineRow:
    """GPU time of one line, or of another thing that was asked for: fields it does not have are '' and 0."""

    key: str
    """stable over runs of the same program: what `diff` aligns by"""
    function: str
    file: str
    line: int
    forward_ns: int
    """everything outside of backward"""
    backward_ns: int
    """backward of what this line did in forward"""
    kernels: int
    copies: int
    """copies and sets"""
    share_frac: float
    """of all GPU time in the trace"""
    unknown_ns: int = 0
    """of calls that were not recorded: neither forward nor backward can be said (`by` kernel alone has it)"""
    callers: tuple[Frame, ...] = ()
    """the user's frames above this one, innermost first, as many as `depth` asked for"""

    @property
    def gpu_ns(self) -> int:
        return self.forward_ns + self.backward_ns + self.unknown_ns


@dataclass(frozen=True, slots=True)
class LinesResult:
    """Rows by GPU time, the largest first."""

    rows: tuple[LineRow, ...]
    coverage: Coverage
    by: By
    phase: PhaseFilter
    total_matched: int
    """rows before `limit`"""

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


@dataclass(frozen=True, slots=True)
class _Label:
    key: str
    function: str = ""
    file: str = ""
    line: int = 0
    callers: tuple[Frame, ...] = ()


def lines(
    trace: Trace,
    by: By = "line",
    phase: PhaseFilter = "all",
    own: tuple[str, ...] | None = None,
    depth: int | None = None,
    limit: int | None = None,
) -> LinesResult:
    """Sum GPU time by the user's line that launched it; backward is charged to its forward line.

    own: files and folders that are the user's code (see Ownership). depth: how many of the user's frames tell
    rows apart (1: the line alone, 2: the line and its caller, ...). limit: at most so many rows.

    Raises UsageError for an unknown `by` or `phase`, NotEnoughDataError if the trace has no GPU operation or
    lacks what `by` needs.
    """
    if by not in GROUPINGS:
        raise UsageError(f"by must be one of {', '.join(GROUPINGS)}, not {by!r}")
    if phase not in PHASES:
        raise UsageError(f"phase must be one of {', '.join(PHASES)}, not {phase!r}")
    if depth is not None and depth < 1:
        raise UsageError(f"depth must be at least 1, not {depth}")
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    found = trace.attribution
    if by in _NEEDS_STACKS and len(trace.stacks) == 1:
        raise NotEnoughDataError(f"{trace.path} holds no Python stacks: {_how_to_record_stacks(trace)}")
    own_row = trace.stacks.own_rows(Ownership(own or ()))
    group, labels = _groups(trace, by, own_row, depth or 1)
    wanted = {
        "all": group >= 0,
        "forward": found.phase == Phase.FORWARD,
        "backward": found.phase == Phase.BACKWARD,
    }
    group = np.where(wanted[phase], group, -1).astype(np.int32)
    rows = _rows(trace, group, labels)
    covered = coverage(trace, own_row)
    if by in ("function", "module") and trace.stacks_found.form == "nsys":
        # Python before 3.11, and nsys always: `forward` may be that of any class in the file.
        note = "nsys notes functions without their class: those of one name in one file are one row"
        covered = replace(covered, notes=(*covered.notes, note))
    return LinesResult(
        rows=tuple(rows[:limit]),
        coverage=covered,
        by=by,
        phase=phase,
        total_matched=len(rows),
    )


def _how_to_record_stacks(trace: Trace) -> str:
    found = trace.stacks_found
    if found.without_payload:
        return f"{found.without_payload} were recorded; export them with `nsys export --include-json=true`"
    if trace.recorder == "torch.profiler":
        return "record with profile(with_stack=True), or with `profiling-lab record`"
    if trace.is_ours:
        state = trace.recorder_facts.get("stacks_state", "on")
        return f"the recorder says: {state}" if state != "on" else "no CUDA call was made from Python"
    return f"record with `profiling-lab record`, or give nsys {NSYS_STACK_FLAGS}"


def _rows(trace: Trace, group: I32, labels: list[_Label]) -> list[LineRow]:
    operations, found = trace.operations, trace.attribution
    duration = operations.duration_ns
    # One key per (label, phase); -1 stays negative.
    phases = len(Phase)
    key = np.where(group < 0, -1, group * phases + found.phase).astype(np.int32)
    total, count = _analysis.sum_by_key(key, duration, phases * len(labels))
    kernel_key = np.where(operations.kind == OperationKind.KERNEL, key, -1).astype(np.int32)
    _, kernels = _analysis.sum_by_key(kernel_key, duration, phases * len(labels))
    gpu_ns = int(duration.sum())
    rows = []
    for i, label in enumerate(labels):
        here = slice(phases * i, phases * (i + 1))
        forward, backward, unknown = total[here].tolist()
        operations_here, kernels_here = int(count[here].sum()), int(kernels[here].sum())
        if operations_here:
            rows.append(
                LineRow(
                    key=label.key,
                    function=label.function,
                    file=label.file,
                    line=label.line,
                    forward_ns=forward,
                    backward_ns=backward,
                    kernels=kernels_here,
                    copies=operations_here - kernels_here,
                    share_frac=(forward + backward + unknown) / gpu_ns if gpu_ns else 0.0,
                    unknown_ns=unknown,
                    callers=label.callers,
                )
            )
    return sorted(rows, key=lambda row: (-row.gpu_ns, row.key))


def _groups(trace: Trace, by: By, own_row: I32, depth: int) -> tuple[I32, list[_Label]]:
    """Per operation the number of its label (-1 if it has none), and the labels."""
    if by == "kernel":
        names = trace.operations.names
        return _merge(trace.operations.name, [_Label(name) for name in names])
    if by == "range":
        if not len(trace.ranges):
            raise NotEnoughDataError(f"{trace.path} holds no NVTX ranges")
        range_row = trace.attribution.range
        name = np.where(range_row >= 0, trace.ranges.name[range_row], -1).astype(np.int32)
        return _merge(name, [_Label(name) for name in trace.ranges.names])
    # Python looks at each distinct own stack once; the operations only look up their number.
    stack = own_row[trace.attribution.stack]
    number, distinct = dense(stack)
    labels = [_label(trace.stacks, own_row, row, by, depth) for row in distinct.tolist()]
    no_line = np.array([row == 0 for row in distinct.tolist()] or [True], dtype=bool)
    number = np.where(no_line[number], -1, number).astype(np.int32) if len(number) else number
    return _merge(number, labels)


def _merge(number: I32, labels: list[_Label]) -> tuple[I32, list[_Label]]:
    """Give labels with equal keys one number: a line that is reached on several ways is one line."""
    merged: dict[str, int] = {}
    kept: list[_Label] = []
    new_number = full(len(labels) + 1, -1, np.int32)  # the last entry is what -1 looks up
    for i, label in enumerate(labels):
        if label.key not in merged:
            merged[label.key] = len(kept)
            kept.append(label)
        new_number[i] = merged[label.key]
    return new_number[number], kept


def own_frames(stacks: Stacks, own_row: I32, row: int) -> tuple[Frame, ...]:
    """The user's frames of a stack, innermost first."""
    out = []
    row = int(own_row[row])
    while row > 0:
        out.append(stacks.frames[stacks.frame[row]])
        row = int(own_row[stacks.parent[row]])
    return tuple(out)


def _label(stacks: Stacks, own_row: I32, row: int, by: By, depth: int) -> _Label:
    frames = own_frames(stacks, own_row, row)
    if not frames:
        return _Label("")
    frame = frames[0]
    if by == "file":
        return _Label(frame.file, file=frame.file)
    if by == "module":
        return _module(frames)
    callers = frames[1:depth]
    if by == "function":
        key = " < ".join(f"{f.file}:{f.function}" for f in (frame, *callers))
        return _Label(key, function=frame.function, file=frame.file, callers=callers)
    key = " < ".join(f"{f.file}:{f.line}" for f in (frame, *callers))
    return _Label(key, function=frame.function, file=frame.file, line=frame.line, callers=callers)


def _module(frames: tuple[Frame, ...]) -> _Label:
    """The innermost nn.Module around a frame: the class whose `forward` runs. Without one, the function."""
    for frame in frames:
        owner, _, method = frame.function.rpartition(".")
        if method == "forward" and owner:
            return _Label(f"{frame.file}:{owner}", function=owner.split(".")[-1], file=frame.file)
    frame = frames[0]
    return _Label(f"{frame.file}:{frame.function}", function=frame.function, file=frame.file)
