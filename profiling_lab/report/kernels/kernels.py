# SPDX-License-Identifier: Apache-2.0
"""The table of kernels, with the frames that launched each."""

from __future__ import annotations

import re
from collections.abc import Callable

from profiling_lab.analysis.kernels.kernels import KernelRow, KernelsResult, LaunchStack
from profiling_lab.analysis.kernels.shapes import KernelShape
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import (
    coverage_data,
    coverage_header,
    totals_data,
    totals_header,
)
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.kernels.launches import PHASES, phase_fields
from profiling_lab.report.kernels.names import readable
from profiling_lab.report.lines.lines import frame_data
from profiling_lab.report.paths import shown_path
from profiling_lab.report.stats import SPREAD, stats_fields
from profiling_lab.report.table import ALWAYS, SPARE, Report, Unit
from profiling_lab.trace import Frame, Trace

# A line, or the range around and the reason why there is no line (places.Placed.texts).
_PLACE = re.compile(r"(.*):(?! )(.*)$")
_DETAILS = {"grid": "grid and block", "line": "line", "shape": "operator and shapes"}
_SHAPE = (
    "shape registers_per_thread shared_bytes_per_block sm_frac occupancy_estimate_frac occupancy_limited_by"
)


def kernels_report(
    trace: Trace, result: KernelsResult, stacks: int = 3, depth: int = 4, stats: bool = False
) -> Report:
    """Rows of `top_kernels` as a report: under each at most `stacks` stacks of `depth` frames. stats: median
    and standard deviation too. Phases and shapes are shown where the result has them.
    """
    phases = any(row.phases is not None for row in result.rows)
    shapes = any(row.shape is not None for row in result.rows)
    detail = "detail" if result.group_by in _DETAILS else ""
    spread = SPREAD if stats else "average_ns" if phases or shapes else "average_ns shortest_ns longest_ns"
    more = f"{PHASES if phases else ''} {_SHAPE if shapes else ''}"
    return Report(
        command="kernels",
        trace={"path": str(trace.path), "group_by": result.group_by},
        header=(*_covered(trace, result), *_header(phases, shapes)),
        table=table_of(
            _fields(result.group_by, phases, shapes),
            f"short_name {detail} total_ns share_frac count {spread} {more}",
            result.rows,
            result.total_matched,
            (stack_lines(row, stacks, depth) for row in result.rows),
        ),
        coverage=totals_data(trace) if result.coverage is None else coverage_data(result.coverage),
    )


def _fields(group_by: str, phases: bool, shapes: bool) -> tuple[Field, ...]:
    count, total, *spread = stats_fields("stats", total="total", count="count")
    return (
        Field("key"),
        Field("name"),
        Field("short_name", "kernel", cell=lambda row: readable(row.name, row.short_name), priority=ALWAYS),
        Field(
            "detail",
            _DETAILS.get(group_by, ""),
            cell=lambda row: _shown_detail(row, group_by),
            priority=ALWAYS,
            is_path=group_by == "line",
        ),
        Field("kind"),
        total,
        count,
        *spread,
        Field("share_frac", "of GPU time", Unit.FRAC, priority=ALWAYS),
        *(phase_fields() if phases else ()),
        *(_SHAPE_FIELDS if shapes else ()),
        Field("stacks", value=lambda row: [_stack_data(stack) for stack in row.stacks]),
    )


def _sizes(name: str) -> Callable[[KernelRow], str]:
    return lambda row: "x".join(map(str, getattr(row.shape.usual, name))) if row.shape else ""


_SHAPE_FIELDS = (
    Field("shape", "grid and block", cell=lambda row: _shown_shape(row.shape), for_people_only=True),
    Field("grid", value=_sizes("grid")),
    Field("block", value=_sizes("block")),
    Field("launch_shapes", value=lambda row: row.shape.shapes if row.shape else 0),
    Field("registers_per_thread", "registers", Unit.COUNT, value="shape.usual.registers", priority=SPARE),
    Field("shared_bytes_per_block", "shared", Unit.BYTES, value="shape.usual.shared_bytes", priority=SPARE),
    Field("sm_frac", "SMs used", Unit.FRAC, value="shape.sm_frac", priority=SPARE),
    Field("occupancy_estimate_frac", "est. occupancy", Unit.FRAC, value="shape.occupancy_frac"),
    Field(
        "occupancy_limited_by",
        "limited by",
        value=lambda row: row.shape.limited_by if row.shape else "",
        priority=SPARE,
    ),
)


def _covered(trace: Trace, result: KernelsResult) -> tuple[str, ...]:
    return totals_header(trace) if result.coverage is None else coverage_header(trace, result.coverage)


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


def _shown_detail(row: KernelRow, by: str) -> str:
    match = _PLACE.match(row.detail) if by == "line" else None
    if match is None:
        return row.detail
    where, what = match.groups()
    if what.isdecimal():
        return f"{shown_path(where)}:{what}"
    return f"in {where} ({what})" if where else f"no line: {what}"


def _shown_shape(shape: KernelShape | None) -> str:
    if shape is None:
        return ""
    return f"{shape.usual} and {shape.shapes - 1} more" if shape.shapes > 1 else str(shape.usual)


def stack_lines(row: KernelRow, stacks: int, depth: int) -> tuple[str, ...]:
    """The lines under a kernel: its launch places, each frame on a line, innermost first."""
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


def _stack_data(stack: LaunchStack) -> dict[str, object]:
    return {
        "phase": stack.phase,
        "gpu_ns": stack.gpu_ns,
        "count": stack.count,
        "frames": [frame_data(frame) for frame in stack.frames],
    }
