# SPDX-License-Identifier: Apache-2.0
"""The table of kernels, with the frames that launched each."""

from __future__ import annotations

import re

from profiling_lab.analysis.kernels.kernels import KernelRow, KernelsResult, LaunchStack
from profiling_lab.analysis.kernels.shapes import KernelShape
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import (
    coverage_data,
    coverage_header,
    totals_data,
    totals_header,
)
from profiling_lab.report.kernel_names import readable
from profiling_lab.report.launches import phase_columns, phase_values, phases_data
from profiling_lab.report.lines import frame_data, shown_path
from profiling_lab.report.stats import spread_columns
from profiling_lab.report.table import Column, Report, Table, Unit, Value
from profiling_lab.trace import Frame, Trace

# A line, or the range around and the reason why there is no line (places.Placed.texts).
_PLACE = re.compile(r"(.*):(?! )(.*)$")
_DETAILS = {"grid": "grid and block", "line": "line", "shape": "operator and shapes"}
_SHAPE = (
    Column("shape", "grid and block"),
    Column("registers", "registers", Unit.COUNT),
    Column("shared_bytes", "shared", Unit.BYTES),
    Column("sm_frac", "SMs used", Unit.FRAC),
    Column("occupancy_frac", "est. occupancy", Unit.FRAC),
    Column("limited_by", "limited by"),
)


def kernels_report(
    trace: Trace, result: KernelsResult, stacks: int = 3, depth: int = 4, stats: bool = False
) -> Report:
    """Rows of `top_kernels` as a report: under each at most `stacks` stacks of `depth` frames. stats: median
    and standard deviation too. Phases and shapes are shown where the result has them.
    """
    phases = any(row.phases is not None for row in result.rows)
    shapes = any(row.shape is not None for row in result.rows)
    columns = [Column("key", "kernel")]
    if result.group_by in _DETAILS:
        columns += [Column("detail", _DETAILS[result.group_by])]
    columns += [
        Column("total_ns", "total", Unit.NS),
        Column("share_frac", "of GPU time", Unit.FRAC),
        Column("count", "count", Unit.COUNT),
        *_spread(stats, phases or shapes),
        *(phase_columns() if phases else ()),
        *(_SHAPE if shapes else ()),
    ]
    return Report(
        command="kernels",
        trace={"path": str(trace.path), "group_by": result.group_by},
        header=(*_covered(trace, result), *_header(phases, shapes)),
        table=Table(
            tuple(columns),
            tuple(_values(row, stats, phases, shapes, result.group_by) for row in result.rows),
            result.total_matched,
            tuple(stack_lines(row, stacks, depth) for row in result.rows),
            tuple(_data(row, phases, shapes) for row in result.rows),
        ),
        coverage=totals_data(trace) if result.coverage is None else coverage_data(result.coverage),
    )


def _covered(trace: Trace, result: KernelsResult) -> tuple[str, ...]:
    return totals_header(trace) if result.coverage is None else coverage_header(trace, result.coverage)


def _spread(stats: bool, brief: bool) -> tuple[Column, ...]:
    """`brief`: other columns need the room."""
    if stats:
        return spread_columns()
    average, _, shortest, longest, _ = spread_columns()
    return (average,) if brief else (average, shortest, longest)


def _header(phases: bool, shapes: bool) -> tuple[str, ...]:
    lines = []
    if phases:
        lines.append(
            "call, queue, kernel: medians of the time in the launching call, from its end to the start of "
            "the kernel (of what was queued), and on the GPU"
        )
    if shapes:
        lines.append("occupancy: what the launch allows, weighted by time; an estimate, no measurement")
    return tuple(lines)


def _values(row: KernelRow, stats: bool, phases: bool, shapes: bool, by: str) -> tuple[Value, ...]:
    return (
        readable(row.name, row.short_name),
        *((_shown_detail(row, by),) if by in _DETAILS else ()),
        row.total_ns,
        row.share_frac,
        row.count,
        *(getattr(row.stats, column.name.removesuffix("_ns")) for column in _spread(stats, phases or shapes)),
        *(_phase_values(row) if phases else ()),
        *(_shape_values(row.shape) if shapes else ()),
    )


def _shown_detail(row: KernelRow, by: str) -> str:
    match = _PLACE.match(row.detail) if by == "line" else None
    if match is None:
        return row.detail
    where, what = match.groups()
    if what.isdecimal():
        return f"{shown_path(where)}:{what}"
    return f"in {where} ({what})" if where else f"no line: {what}"


def _phase_values(row: KernelRow) -> tuple[Value, ...]:
    # Copies have a call too, but it is no launch: for them the columns stay empty.
    return phase_values(row.phases) if row.phases else (None,) * len(phase_columns())


def _shape_values(shape: KernelShape | None) -> tuple[Value, ...]:
    if shape is None:
        return ("", None, None, None, None, "")
    more = f" and {shape.shapes - 1} more" if shape.shapes > 1 else ""
    usual = shape.usual
    return (
        f"{usual}{more}",
        usual.registers,
        usual.shared_bytes,
        shape.sm_frac,
        shape.occupancy_frac,
        shape.limited_by,
    )


def stack_lines(row: KernelRow, stacks: int, depth: int) -> tuple[str, ...]:
    """What stands under a kernel: its launch places, each frame on a line, innermost first."""
    # Stacks that look the same as far as they are shown are one place.
    places: dict[tuple[str, tuple[Frame, ...]], int] = {}
    for stack in row.stacks:
        place = (stack.phase, stack.frames[:depth])
        places[place] = places.get(place, 0) + stack.gpu_ns
    lines: list[str] = []
    for (phase, frames), gpu_ns in sorted(places.items(), key=lambda item: -item[1])[:stacks]:
        head = f"{numbers.share(gpu_ns / row.total_ns if row.total_ns else 0.0)} {phase}"
        shown = [f"{shown_path(f.file)}:{f.function}() line {f.line}" for f in frames] or ["no Python stack"]
        lines += [f"{head}: {shown[0]}", *(f"  from {frame}" for frame in shown[1:])]
    if stacks and len(places) > stacks:
        lines.append(f"and {numbers.counted(len(places) - stacks, 'more place')}")
    return tuple(lines)


def _data(row: KernelRow, phases: bool, shapes: bool) -> dict[str, object]:
    data: dict[str, object] = {
        "key": row.key,
        "name": row.name,
        "short_name": row.short_name,
        "detail": row.detail,
        "kind": row.kind,
        "total_ns": row.total_ns,
        "count": row.count,
        "average_ns": row.average_ns,
        "median_ns": row.stats.median,
        "shortest_ns": row.shortest_ns,
        "longest_ns": row.longest_ns,
        "deviation_ns": row.stats.deviation,
        "share_frac": round(row.share_frac, 6),
    }
    if phases and row.phases:
        data |= phases_data(row.phases)
    if shapes:
        data |= _shape_data(row.shape)
    return data | {"stacks": [_stack_data(stack) for stack in row.stacks]}


def _shape_data(shape: KernelShape | None) -> dict[str, object]:
    usual = shape.usual if shape else None
    return {
        "grid": "x".join(map(str, usual.grid)) if usual else "",
        "block": "x".join(map(str, usual.block)) if usual else "",
        "launch_shapes": shape.shapes if shape else 0,
        "registers_per_thread": usual.registers if usual else None,
        "shared_bytes_per_block": usual.shared_bytes if usual else None,
        "sm_frac": _rounded(shape.sm_frac if shape else None),
        "occupancy_estimate_frac": _rounded(shape.occupancy_frac if shape else None),
        "occupancy_limited_by": shape.limited_by if shape else "",
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _stack_data(stack: LaunchStack) -> dict[str, object]:
    return {
        "phase": stack.phase,
        "gpu_ns": stack.gpu_ns,
        "count": stack.count,
        "frames": [frame_data(frame) for frame in stack.frames],
    }
