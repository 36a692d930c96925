# SPDX-License-Identifier: Apache-2.0
"""Did a change help? Recordings from before and after it, compared step by step and line by line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np

from profiling_lab.analysis.diff.guard import CHECKS, Condition, checks
from profiling_lab.analysis.diff.judge import Noise, judge
from profiling_lab.analysis.diff.measure import IDLE, Capture, LineInPhase, measure
from profiling_lab.analysis.diff.memory import MemoryDiff, MemoryLimit, compare_memory, of_capture
from profiling_lab.analysis.diff.noise import (
    Interval,
    median_ns,
)
from profiling_lab.analysis.diff.rows import Aligned, By, Side, align, group
from profiling_lab.analysis.diff.verdict import (
    Budget,
    Limit,
    LimitResult,
    State,
    outcome_of,
    parse_budget,
    parse_limit,
    parse_memory_limit,
    state_of,
)
from profiling_lab.errors import UsageError
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I64
from profiling_lab.trace.trace import Trace

Kind: TypeAlias = Literal["line", "function", "operator", "kernel", "idle", "twice", "rest"]
RowState: TypeAlias = State | Literal["new", "removed", "small", "equal"]

GROUPINGS: tuple[By, ...] = get_args(By)
SMALL_FRAC = 0.001
"""changes below this share of the step are listed, their interval is not worked out"""


@dataclass(frozen=True, slots=True)
class PartChange:
    """One kernel of a row, or one cause of idle time. Their medians need not add up to that of the row."""

    name: str
    file: str
    """where the host was in idle time, or what it was on its way to; '' for kernels"""
    line: int
    before_ns: int
    after_ns: int


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One part of the step: its median time on either side. Fields it does not have are '' and 0."""

    key: str
    kind: Kind
    """'operator' and 'kernel': what has no line in user code; 'idle'; 'twice': time that
    overlapping operations count twice, negative; 'rest': what is left, as medians of parts do not add up"""
    file: str
    function: str
    line: int
    phase: str
    line_before: int
    """its number before the change, where the line moved; else 0"""
    before_ns: int
    after_ns: int
    interval: Interval | None
    """of the change, with 95 % confidence; None if there are too few steps, or the change is small"""
    state: RowState
    parts: tuple[PartChange, ...]
    """the largest change first"""
    source: str = ""
    """the text of the line after the change, '' if it is unknown or there is no such line"""
    source_before: str = ""
    """and before it"""

    @property
    def change_ns(self) -> int:
        return self.after_ns - self.before_ns


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The steps of one side, over all its recordings."""

    count: int
    median_ns: int
    mean_ns: int
    fastest_ns: int
    slowest_ns: int
    whole_ns: int
    """the median step on every device that worked: what the rows add up to"""


@dataclass(frozen=True, slots=True)
class DiffResult:
    """`rows` by the size of their change; their changes sum to that of `whole_ns` exactly."""

    captures_before: tuple[Capture, ...]
    captures_after: tuple[Capture, ...]
    by: By
    before: StepTimes
    after: StepTimes
    interval: Interval | None
    """of the change of the median step; None if there are too few steps"""
    state: State
    checks: tuple[Condition, ...]
    gate: LimitResult | None
    budgets: tuple[LimitResult, ...]
    rows: tuple[DiffRow, ...]
    memory: MemoryDiff | None = None
    """None unless every recording holds memory"""

    @property
    def change_ns(self) -> int:
        return self.after.median_ns - self.before.median_ns

    @property
    def comparable(self) -> bool:
        return not any(check.refuses for check in self.checks)

    @property
    def is_identical(self) -> bool:
        """Both sides took exactly the same times."""
        return self.interval == Interval(0, 0) and not any(row.change_ns for row in self.rows)

    @property
    def common_frac(self) -> float | None:
        """The share of the GPU time of both sides that is in rows which both have; None if nothing ran."""
        rows = [row for row in self.rows if row.kind not in ("idle", "twice", "rest")]
        whole_ns = sum(row.before_ns + row.after_ns for row in rows)
        common_ns = sum(row.before_ns + row.after_ns for row in rows if row.before_ns and row.after_ns)
        return common_ns / whole_ns if whole_ns else None

    @property
    def limits(self) -> tuple[tuple[str, LimitResult | MemoryLimit], ...]:
        """What was held against a limit, by the name of its option."""
        gates = (("gate", self.gate), ("gate-memory", self.memory and self.memory.gate))
        return (
            *((what, gate) for what, gate in gates if gate),
            *(("budget", budget) for budget in self.budgets),
        )


def diff(
    before: Sequence[Trace | Capture],
    after: Sequence[Trace | Capture],
    *,
    by: By = "line",
    own: tuple[str, ...] = (),
    steps_by: str | None = None,
    gate: str | None = None,
    gate_memory: str | None = None,
    budgets: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> DiffResult:
    """Compare recordings from before a change with recordings from after it, or with what was kept of them.

    own: files and folders that are the user's code (see Ownership). steps_by: which ranges are steps (see
    step_windows). gate: how much longer the median step may take (`3%`, `2ms`). gate_memory: how much the
    peak of memory may grow (`5%`, `512MiB`). budgets: see parse_budget. allow: names of CHECKS that may
    differ.

    Raises UsageError for what it does not understand, and for a budget of something that neither side has;
    NotEnoughDataError for a trace without GPU operations, and with gate_memory for one without memory.
    """
    if not before or not after:
        raise UsageError("expected at least one recording from before and one from after the change")
    for side in (before, after):
        paths = [trace.path.resolve() for trace in side if isinstance(trace, Trace)]
        if len(set(paths)) < len(paths):
            raise UsageError(
                f"{max(paths, key=paths.count)} is given twice on one side: it would count twice"
            )
    if by not in GROUPINGS:
        raise UsageError(f"by must be one of {', '.join(GROUPINGS)}, not {by!r}")
    if unknown := sorted(set(allow) - set(CHECKS)):
        raise UsageError(f"allow must be of {', '.join(CHECKS)}, not {unknown[0]!r}")
    gate_limit = parse_limit(gate) if gate is not None else None
    memory_limit = parse_memory_limit(gate_memory) if gate_memory is not None else None
    parsed = [parse_budget(text) for text in budgets]
    sides = tuple(
        tuple(measure(each, own, steps_by) if isinstance(each, Trace) else each for each in side)
        for side in (before, after)
    )
    return replace(
        _compare(sides[0], sides[1], by, gate_limit, parsed, allow),
        memory=_memory(sides[0], sides[1], memory_limit, allow),
    )


def _memory(
    before: tuple[Capture, ...], after: tuple[Capture, ...], limit: Limit | None, allow: Sequence[str]
) -> MemoryDiff | None:
    if limit is None and any(capture.memory is None for capture in (*before, *after)):
        return None
    theirs, ours = ([of_capture(capture) for capture in side] for side in (before, after))
    return compare_memory(theirs, ours, limit=limit, allow=allow)


def _compare(
    before: tuple[Capture, ...],
    after: tuple[Capture, ...],
    by: By,
    gate: Limit | None,
    budgets: Sequence[Budget],
    allow: Sequence[str],
) -> DiffResult:
    aligned = align(before, after)
    noise = Noise(aligned)
    theirs, ours = _step_times(aligned.before), _step_times(aligned.after)
    rows = _rows(aligned, by, noise, theirs, ours)
    change = noise.change(aligned.before.step_ns, aligned.after.step_ns)
    identical = np.array_equal(aligned.before.step_ns, aligned.after.step_ns) and all(
        row.change_ns == 0 for row in rows
    )
    if identical:  # The same recording twice needs no steps to be the same.
        change = Interval(0, 0)
    judged = None
    if gate is not None:
        limit_ns, change_ns = gate.of(theirs.median_ns), ours.median_ns - theirs.median_ns
        judged = LimitResult(f"+{gate.text}", limit_ns, change_ns, change, outcome_of(change, limit_ns))
    return DiffResult(
        captures_before=before,
        captures_after=after,
        by=by,
        before=theirs,
        after=ours,
        interval=change,
        state=state_of(change),
        checks=checks(before, after, allow),
        gate=judged,
        budgets=tuple(judge(budget, aligned, noise) for budget in budgets),
        rows=rows,
    )


def _step_times(side: Side) -> StepTimes:
    return StepTimes(
        count=len(side),
        median_ns=median_ns(side.step_ns),
        mean_ns=int(side.step_ns.mean()),
        fastest_ns=int(side.step_ns.min()),
        slowest_ns=int(side.step_ns.max()),
        whole_ns=median_ns(side.whole_ns),
    )


def _rows(aligned: Aligned, by: By, noise: Noise, before: StepTimes, after: StepTimes) -> tuple[DiffRow, ...]:
    small_ns = SMALL_FRAC * max(before.whole_ns, 1)
    rows = []
    for place, columns in group(aligned.leaves, by).items():
        times = [side.leaf_ns[:, columns].sum(axis=1) for side in (aligned.before, aligned.after)]
        kind = _kind(place)
        parts = () if kind == "kernel" else _parts(aligned, columns)
        row = _row(kind, place, times[0], times[1], noise, small_ns, parts, aligned.line_before.get(place, 0))
        if kind == "line":
            row = _with_source(row, place, aligned)
        # What most steps of both sides do not run shows in the rest alone.
        rows += [row] if row.before_ns or row.after_ns else []
    theirs, ours = aligned.before, aligned.after
    if theirs.twice_ns.any() or ours.twice_ns.any():
        rows.append(
            _row("twice", LineInPhase("", "", 0, ""), theirs.twice_ns, ours.twice_ns, noise, small_ns)
        )
    rows.sort(key=lambda row: (-abs(row.change_ns), -row.after_ns, row.key))
    left_before = before.whole_ns - sum(row.before_ns for row in rows)
    left_after = after.whole_ns - sum(row.after_ns for row in rows)
    if left_before or left_after:
        state: RowState = "equal" if left_before == left_after else "undecided"
        rows.append(DiffRow("rest", "rest", "", "", 0, "", 0, left_before, left_after, None, state, ()))
    return tuple(rows)


def _row(
    kind: Kind,
    place: LineInPhase,
    before: I64,
    after: I64,
    noise: Noise,
    small_ns: float,
    parts: tuple[PartChange, ...] = (),
    line_before: int = 0,
) -> DiffRow:
    theirs, ours = median_ns(before), median_ns(after)
    change = noise.change(before, after) if abs(ours - theirs) >= small_ns else None
    state: RowState
    if not before.any() or not after.any():
        state = "new" if after.any() else "removed"
    elif ours == theirs:
        state = "equal"
    else:
        state = "small" if abs(ours - theirs) < small_ns else state_of(change)
    return DiffRow(
        key=_key(kind, place) if place.line >= 0 else f"{_key(kind, place)} (before)",
        kind=kind,
        file=place.file,
        function=place.function or place.operator,
        line=max(place.line, 0),
        phase="" if kind == "idle" else place.phase,
        line_before=line_before,
        before_ns=theirs,
        after_ns=ours,
        interval=change,
        state=state,
        parts=parts,
    )


def _with_source(row: DiffRow, place: LineInPhase, aligned: Aligned) -> DiffRow:
    """The number of a new line may have been another line's before."""
    before = (row.file, row.line_before or abs(place.line))
    return replace(
        row,
        source=aligned.source_after.get((row.file, row.line), ""),
        source_before="" if row.state == "new" else aligned.source_before.get(before, ""),
    )


def _kind(place: LineInPhase) -> Kind:
    if place.phase == IDLE:
        return "idle"
    if place.file:
        return "line" if place.line else "function"
    return "operator" if place.operator else "kernel"


def _key(kind: Kind, place: LineInPhase) -> str:
    if kind in ("idle", "twice"):
        return kind
    where = {
        "line": f"{place.file}:{abs(place.line)}",
        "function": f"{place.file}:{place.function}",
        "operator": place.operator,
    }.get(kind, place.function)
    return f"{where} {place.phase}"


def _parts(aligned: Aligned, columns: list[int]) -> tuple[PartChange, ...]:
    by_name: dict[tuple[str, str, int], list[int]] = {}
    for i in columns:
        place, name = aligned.leaves[i]
        where = (place.file, abs(place.line)) if place.phase == IDLE else ("", 0)
        by_name.setdefault((name, *where), []).append(i)
    sides = (aligned.before, aligned.after)
    found = [
        PartChange(*name, *(median_ns(side.leaf_ns[:, its].sum(axis=1)) for side in sides))
        for name, its in by_name.items()
    ]
    found = [part for part in found if part.before_ns or part.after_ns]
    return tuple(
        sorted(found, key=lambda p: (-abs(p.after_ns - p.before_ns), -p.after_ns, p.name, p.file, p.line))
    )
