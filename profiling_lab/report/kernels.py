# SPDX-License-Identifier: Apache-2.0
"""The table of kernels, with the frames that launched each."""

from __future__ import annotations

from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.kernel_names import readable
from profiling_lab.report.lines import frame_data, shown_path
from profiling_lab.report.table import Column, Report, Table, Unit
from profiling_lab.trace import Frame, Trace
from profiling_lab.trace.kernels import KernelRow, KernelsResult, LaunchStack

COLUMNS = (
    Column("key", "kernel"),
    Column("total_ns", "total", Unit.NS),
    Column("share_frac", "of GPU time", Unit.FRAC),
    Column("count", "count", Unit.COUNT),
    Column("average_ns", "average", Unit.NS, "launch"),
    Column("shortest_ns", "shortest", Unit.NS, "launch"),
    Column("longest_ns", "longest", Unit.NS, "launch"),
)


def kernels_report(trace: Trace, result: KernelsResult, stacks: int = 3, depth: int = 4) -> Report:
    """Rows of `top_kernels` as a report: under each at most `stacks` stacks of `depth` frames."""
    rows = tuple(
        (
            readable(row.name, row.short_name),
            row.total_ns,
            row.share_frac,
            row.count,
            row.average_ns,
            row.shortest_ns,
            row.longest_ns,
        )
        for row in result.rows
    )
    return Report(
        command="kernels",
        trace={"path": str(trace.path)},
        header=coverage_header(trace, result.coverage),
        table=Table(
            COLUMNS,
            rows,
            result.total_matched,
            tuple(stack_lines(row, stacks, depth) for row in result.rows),
            tuple(map(_data, result.rows)),
        ),
        coverage=coverage_data(result.coverage),
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


def _data(row: KernelRow) -> dict[str, object]:
    return {
        "key": row.key,
        "name": row.name,
        "short_name": row.short_name,
        "kind": row.kind,
        "total_ns": row.total_ns,
        "count": row.count,
        "average_ns": row.average_ns,
        "shortest_ns": row.shortest_ns,
        "longest_ns": row.longest_ns,
        "share_frac": round(row.share_frac, 6),
        "stacks": [_stack_data(stack) for stack in row.stacks],
    }


def _stack_data(stack: LaunchStack) -> dict[str, object]:
    return {
        "phase": stack.phase,
        "gpu_ns": stack.gpu_ns,
        "count": stack.count,
        "frames": [frame_data(frame) for frame in stack.frames],
    }
