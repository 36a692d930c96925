# SPDX-License-Identifier: Apache-2.0
"""The table of steps."""

from __future__ import annotations

from collections.abc import Sequence

from profiling_lab.analysis.host.steps import CATEGORIES
from profiling_lab.analysis.steps import PARTS, StepsResult
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.table import ALWAYS, SPARE, USUAL, Report, Unit
from profiling_lab.trace import Trace

_PRIORITY = {part: USUAL if part in ("compute", "idle") else SPARE for part in PARTS}
_CLOCKS = {
    "gpu": "from the first GPU operation of a step to the first of the next",
    "host": "as marked by the program, on the host's clock",
}


def steps_report(trace: Trace, result: StepsResult) -> Report:
    """Rows of `steps` as a report; process and device are shown where there are several."""
    several = "pid device" if len({(row.pid, row.device) for row in result.rows}) > 1 else ""
    parts = CATEGORIES if any(row.categories_ns for row in result.rows) else PARTS
    table = table_of(
        _fields(parts),
        f"number name {several} wall_ns {' '.join(map(_key, parts))} idle_frac outlier",
        result.rows,
        result.total_matched,
    )
    return trace_report(
        "steps",
        trace,
        result.coverage,
        _header(result),
        table,
        steps_by=result.sign,
        clock=result.clock,
        steps=result.steps,
        median_ns=result.median_ns,
        outside_ns=result.outside_ns,
        outside_busy_ns=result.outside_busy_ns,
    )


def _fields(parts: Sequence[str]) -> tuple[Field, ...]:
    return (
        Field("key"),
        Field("number", "no.", Unit.COUNT, priority=ALWAYS),
        Field("name", "step", priority=ALWAYS),
        Field("pid", "process", priority=ALWAYS),
        Field("device", "GPU", priority=ALWAYS),
        Field("start_ns"),
        Field("end_ns"),
        Field("wall_ns", "wall", Unit.NS, priority=ALWAYS),
        *(Field(_key(part), part, Unit.NS, priority=_PRIORITY[part]) for part in PARTS),
        Field(
            "idle_frac",
            "idle of wall",
            Unit.FRAC,
            value=lambda row: row.idle_ns / row.wall_ns if row.wall_ns else 0.0,
            priority=ALWAYS,
            for_people_only=True,
        ),
        Field("outlier", "outlier", cell=lambda row: f"{row.grew} grew" if row.outlier else ""),
        Field("grew"),
        *(_category(part) for part in parts if part not in PARTS),
    )


def _category(part: str) -> Field:
    number = CATEGORIES.index(part)
    return Field(_key(part), part, Unit.NS, value=lambda row: row.categories_ns[number], priority=SPARE)


def _key(part: str) -> str:
    return f"{part.replace(' ', '_')}_ns"


def _header(result: StepsResult) -> tuple[str, ...]:
    found = f"steps: {result.how}"
    if result.sign == "window":
        return (found,)
    lines = [
        f"{found}; {numbers.counted(result.steps, 'step')}, median {numbers.time(result.median_ns)}",
        f"  {_CLOCKS[result.clock]}; what overlaps counts as compute, then as communication, then as copy",
    ]
    if any(row.categories_ns for row in result.rows):
        lines.append(
            "  where the GPU did nothing: the host in a CUDA call (runtime), loading data, in an operator or "
            "range, or in none of them (other)"
        )
    if result.outside_ns:
        outside, busy = numbers.time(result.outside_ns), numbers.time(result.outside_busy_ns)
        lines.append(f"  outside of steps: {outside}, the GPU busy in {busy} of it")
    return tuple(lines)
