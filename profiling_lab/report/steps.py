# SPDX-License-Identifier: Apache-2.0
"""The table of steps."""

from __future__ import annotations

from profiling_lab.analysis.step_host import CATEGORIES
from profiling_lab.analysis.steps import PARTS, StepRow, StepsResult
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.table import Column, Report, Table, Unit, Value
from profiling_lab.trace import Trace

_CLOCKS = {
    "gpu": "from the first GPU operation of a step to the first of the next",
    "host": "as marked by the program, on the host's clock",
}


def steps_report(trace: Trace, result: StepsResult) -> Report:
    """Rows of `steps` as a report; process and device are shown where there are several."""
    columns = [Column("number", "no.", Unit.COUNT), Column("name", "step")]
    if len({(row.pid, row.device) for row in result.rows}) > 1:
        columns += [Column("pid", "process"), Column("device", "GPU")]
    columns += [Column("wall_ns", "wall", Unit.NS)]
    has_host = any(row.categories_ns for row in result.rows)
    for part in CATEGORIES if has_host else PARTS:
        columns.append(Column(_key(part), part, Unit.NS))
    columns += [Column("idle_frac", "idle of wall", Unit.FRAC), Column("outlier", "outlier")]
    return Report(
        command="steps",
        trace={
            "path": str(trace.path),
            "steps_by": result.sign,
            "clock": result.clock,
            "steps": result.steps,
            "median_ns": result.median_ns,
            "outside_ns": result.outside_ns,
            "outside_busy_ns": result.outside_busy_ns,
        },
        header=(*coverage_header(trace, result.coverage), *_header(result)),
        table=Table(
            tuple(columns),
            tuple(tuple(_value(row, column.name) for column in columns) for row in result.rows),
            result.total_matched,
            data=tuple(map(_data, result.rows)),
        ),
        coverage=coverage_data(result.coverage),
    )


def _key(part: str) -> str:
    return f"{part.replace(' ', '_')}_ns"


def _categories(row: StepRow) -> dict[str, int]:
    return {_key(part): ns for part, ns in zip(CATEGORIES, row.categories_ns, strict=False)}


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


def _value(row: StepRow, name: str) -> Value:
    if name == "idle_frac":
        return row.idle_ns / row.wall_ns if row.wall_ns else 0.0
    if name == "outlier":
        return f"{row.grew} grew" if row.outlier else ""
    categories = _categories(row)
    value: Value = categories[name] if name in categories else getattr(row, name)
    return value


def _data(row: StepRow) -> dict[str, object]:
    return {
        "key": row.key,
        "number": row.number,
        "name": row.name,
        "pid": row.pid,
        "device": row.device,
        "start_ns": row.start_ns,
        "end_ns": row.end_ns,
        "wall_ns": row.wall_ns,
        "compute_ns": row.compute_ns,
        "communication_ns": row.communication_ns,
        "copy_ns": row.copy_ns,
        "idle_ns": row.idle_ns,
        "outlier": row.outlier,
        "grew": row.grew,
        **_categories(row),
    }
