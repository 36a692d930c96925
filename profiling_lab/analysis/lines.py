# SPDX-License-Identifier: Apache-2.0
"""GPU time per line of Python: forward, backward, recomputed, and in the optimizer; its own, and with what it
called.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.coverage import NSYS_STACK_FLAGS, Coverage, coverage
from profiling_lab.analysis.lines_groups import GROUPINGS, NEEDS_STACKS, By, Groups, groups, own_frames
from profiling_lab.analysis.lines_host import sampled_hint
from profiling_lab.analysis.lines_inside import look_inside, without_stacks
from profiling_lab.analysis.lines_layers import FOLDED_NOTE, ONE_LINE_NOTE, knows_instances
from profiling_lab.analysis.places import ran_in_backward
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I32, I64, OperationKind, dense
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import LINE_PHASES, LinePhase
from profiling_lab.trace.platform import in_words_of, is_rocm
from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.trace import Trace

__all__ = ["GROUPINGS", "PHASES", "SORTS", "By", "LineRow", "LinesResult", "lines", "own_frames"]

PhaseFilter: TypeAlias = Literal["forward", "backward", "recompute", "optimizer", "all"]
Sort: TypeAlias = Literal[PhaseFilter, "inclusive", "kernels", "key"]
PHASES: tuple[PhaseFilter, ...] = get_args(PhaseFilter)
SORTS: tuple[Sort, ...] = get_args(Sort)
"""'all' sorts by the sum of all phases"""


@dataclass(frozen=True, slots=True)
class Executed:
    """Python that ran in backward: a line of a torch.autograd.Function's backward, or of a hook."""

    frame: Frame
    gpu_ns: int
    operations: int


@dataclass(frozen=True, slots=True)
class LineRow:
    """GPU time of one line, or of another thing that was asked for: fields it does not have are '' and 0."""

    key: str
    """stable over runs of the same program: what `diff` aligns by"""
    function: str
    file: str
    line: int
    forward_ns: int
    """everything outside of the phases below"""
    backward_ns: int
    """backward of what this line did in forward"""
    kernels: int
    copies: int
    """copies and sets"""
    share_frac: float
    """of all GPU time in the trace"""
    unknown_ns: int = 0
    """of calls that were not recorded: their phase is unknown (`by` kernel alone has it)"""
    callers: tuple[Frame, ...] = ()
    """the user's frames above this one, innermost first, as many as `depth` asked for"""
    recompute_ns: int = 0
    """what this line did in forward, done again in backward (activation checkpointing)"""
    optimizer_ns: int = 0
    inclusive_ns: int = 0
    """of this line and all it called, each operation once; of kernels and ranges their own time"""
    executed: tuple[Executed, ...] = ()
    """where backward of this line ran Python, which is another line; the most expensive first"""

    @property
    def gpu_ns(self) -> int:
        return self.forward_ns + self.backward_ns + self.recompute_ns + self.optimizer_ns + self.unknown_ns


@dataclass(frozen=True, slots=True)
class LinesResult:
    """Rows in the requested order; by default by GPU time, the largest first."""

    rows: tuple[LineRow, ...]
    coverage: Coverage
    by: By
    phase: PhaseFilter
    total_matched: int
    """rows before `limit`"""
    phase_ns: tuple[int, ...]
    """all GPU time by LinePhase, with a line or without"""

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


def lines(
    trace: Trace,
    by: By = "line",
    phase: PhaseFilter = "all",
    own: tuple[str, ...] | None = None,
    depth: int | None = None,
    limit: int | None = None,
    sort: Sort = "all",
) -> LinesResult:
    """Sum GPU time by the user's line that launched it; backward is charged to its forward line.

    own: files and folders that are the user's code (see Ownership). depth: how many user frames
    distinguish rows (1: the line alone, 2: the line and its caller, ...). limit: the most rows.
    sort: by what; 'inclusive' also lists lines that launched nothing themselves, only called what did.

    Raises UsageError for an unknown `by`, `phase` or `sort`, NotEnoughDataError if the trace has no GPU
    operation or lacks what `by` needs.
    """
    for name, given, known in (("by", by, GROUPINGS), ("phase", phase, PHASES), ("sort", sort, SORTS)):
        if given not in known:
            raise UsageError(f"{name} must be one of {', '.join(known)}, not {given!r}")
    if depth is not None and depth < 1:
        raise UsageError(f"depth must be at least 1, not {depth}")
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    needs_operations(trace)
    phases = trace.attribution.line_phase
    needs_stacks(trace, by)
    own_row = trace.stacks.own_rows(Ownership(own or ()))
    wanted = np.ones(len(phases), dtype=bool)
    if phase != "all":
        wanted = phases == LINE_PHASES.index(phase)
    grouped = groups(trace, by, own_row, depth or 1)
    rows = _rows(trace, grouped, phases.astype(np.int32), wanted, own_row, with_callers=sort == "inclusive")
    return LinesResult(
        rows=tuple(sorted(rows, key=lambda row: _order(row, sort))[:limit]),
        coverage=_covered(trace, own_row, by),
        by=by,
        phase=phase,
        total_matched=len(rows),
        phase_ns=tuple(total_by_phase(trace)),
    )


def total_by_phase(trace: Trace) -> list[int]:
    """All GPU time by LinePhase."""
    phase, duration = trace.attribution.line_phase.astype(np.int32), trace.operations.duration_ns
    total: list[int] = _analysis.sum_by_key(phase, duration, len(LinePhase))[0].tolist()
    return total


def _order(row: LineRow, sort: Sort) -> tuple[object, ...]:
    if sort == "key":
        return (row.file or row.key, row.line, row.key)
    first = {"all": row.gpu_ns, "kernels": row.kernels, "inclusive": row.inclusive_ns}.get(sort)
    first = getattr(row, f"{sort}_ns") if first is None else first
    return (-first, -row.gpu_ns, row.key)


def _covered(trace: Trace, own_row: I32, by: By) -> Coverage:
    covered = coverage(trace, own_row)
    more = []
    if by in ("function", "module") and trace.stacks_found.form == "nsys":
        # Python before 3.11, and nsys always: `forward` may be that of any class in the file.
        more.append("nsys notes functions without their class: those of one name in one file are one row")
    if by == "line" and (inside := look_inside(trace, own_row)):
        more.append(inside)
    if by == "layer":
        more.append(FOLDED_NOTE if knows_instances(trace.stacks) else ONE_LINE_NOTE)
    return replace(covered, notes=(*covered.notes, *more))


def needs_operations(trace: Trace) -> None:
    """Raises NotEnoughDataError in a recording without any GPU operation; it names the samples it has."""
    if not len(trace.whole.operations):
        raise NotEnoughDataError(f"{trace.whole.why_empty()}{sampled_hint(trace)}")


def needs_stacks(trace: Trace, by: By = "line") -> None:
    """Raises NotEnoughDataError if `by` needs Python stacks and the trace holds none."""
    if by in NEEDS_STACKS and len(trace.stacks) == 1:
        others = without_stacks(trace) if by == "line" else ""
        raise NotEnoughDataError(
            f"{trace.path} holds no Python stacks: {_how_to_record_stacks(trace)}{others and f'; {others}'}"
        )


def _how_to_record_stacks(trace: Trace) -> str:
    found = trace.stacks_found
    if found.without_payload:
        return f"{found.without_payload} were recorded; export them with `nsys export --include-json=true`"
    if trace.recorder == "torch.profiler":
        or_ours = "" if is_rocm(trace) else ", or with `profiling-lab record`"
        return f"record with profile(with_stack=True){or_ours}"
    if trace.is_ours:
        state = trace.recorder_facts.get("stacks_state", "on")
        return f"the recorder says: {state}" if state != "on" else "no CUDA call was made from Python"
    return in_words_of(trace, f"record with `profiling-lab record`, or give nsys {NSYS_STACK_FLAGS}")


def _rows(
    trace: Trace,
    grouped: Groups,
    phases: I32,
    wanted: npt.NDArray[np.bool_],
    own_row: I32,
    *,
    with_callers: bool,
) -> list[LineRow]:
    operations, duration = trace.operations, trace.operations.duration_ns
    size, labels = len(LinePhase), len(grouped.labels)
    # One key per (label, phase); -1 stays negative.
    key = np.where(wanted & (grouped.label >= 0), grouped.label * size + phases, -1).astype(np.int32)
    total, count = _analysis.sum_by_key(key, duration, size * labels)
    kernel_key = np.where(operations.kind == OperationKind.KERNEL, key, -1).astype(np.int32)
    _, kernels = _analysis.sum_by_key(kernel_key, duration, size * labels)
    inclusive = _inclusive(grouped, wanted, duration)
    executed = _executed(trace, grouped, wanted & (phases == LinePhase.BACKWARD), own_row)
    gpu_ns = int(duration.sum())
    rows = []
    for i, label in enumerate(grouped.labels):
        here = slice(size * i, size * (i + 1))
        operations_here, kernels_here = int(count[here].sum()), int(kernels[here].sum())
        if not operations_here and not (with_callers and inclusive[i]):
            continue
        forward, backward, recompute, optimizer, unknown = total[here].tolist()
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
                share_frac=int(total[here].sum()) / gpu_ns if gpu_ns else 0.0,
                unknown_ns=unknown,
                callers=label.callers,
                recompute_ns=recompute,
                optimizer_ns=optimizer,
                inclusive_ns=inclusive[i],
                executed=executed.get(i, ()),
            )
        )
    return rows


def _inclusive(grouped: Groups, wanted: npt.NDArray[np.bool_], duration: I64) -> list[int]:
    """Per label the time of all stacks that pass through it; recursion does not count twice."""
    stack = np.where(wanted, grouped.stack, -1).astype(np.int32)
    per_stack, _ = _analysis.sum_by_key(stack, duration, len(grouped.around))
    out = [0] * len(grouped.labels)
    for labels, ns in zip(grouped.around, per_stack.tolist(), strict=True):
        for label in labels:
            out[label] += ns
    return out


def _executed(
    trace: Trace, grouped: Groups, backward: npt.NDArray[np.bool_], own_row: I32
) -> dict[int, tuple[Executed, ...]]:
    """Per label where backward that was joined with a forward line ran the user's own Python."""
    stacks, ran = trace.stacks, ran_in_backward(trace, own_row)
    rows = np.flatnonzero(backward & (ran > 0) & (grouped.label >= 0))
    pair, distinct = dense(grouped.label[rows].astype(np.int64) << 32 | stacks.frame[ran[rows]])
    total, count = _analysis.sum_by_key(pair, trace.operations.duration_ns[rows], len(distinct))
    out: dict[int, list[Executed]] = {}
    for value, ns, times in zip(distinct.tolist(), total.tolist(), count.tolist(), strict=True):
        out.setdefault(value >> 32, []).append(Executed(stacks.frames[value & 0xFFFFFFFF], ns, times))
    return {label: tuple(sorted(all_, key=lambda e: (-e.gpu_ns, e.frame))) for label, all_ in out.items()}
