# SPDX-License-Identifier: Apache-2.0
"""The kernels that cost most, each with the Python frames that launched it."""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.coverage import Coverage, coverage
from profiling_lab.analysis.kernels.groups import GroupBy, kernel_groups
from profiling_lab.analysis.kernels.launches import Phases, PhasesByKey
from profiling_lab.analysis.kernels.shapes import KernelShape, kernel_shapes
from profiling_lab.analysis.lines_groups import own_frames
from profiling_lab.analysis.stats import Stats, StatsByKey
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I32, OperationKind, dense, full
from profiling_lab.trace.extras import LaunchShapes
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class LaunchStack:
    """One place in the program that launched a kernel: in backward, the forward place it belongs to."""

    frames: tuple[Frame, ...]
    """the user's frames, innermost first; every frame where none is the user's; () if there is no stack"""
    phase: str
    """'forward' (everything outside of backward), 'backward', or 'unknown': its call was not recorded"""
    gpu_ns: int
    count: int


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All launches of one kernel, or all copies of one kind."""

    name: str
    short_name: str
    kind: str
    """'kernel', 'copy', 'set' or 'graph'"""
    detail: str
    """what else distinguishes it: the grid, the line, or the operator with its shapes; '' for the name"""
    stats: Stats
    """of the time of each launch, ns"""
    share_frac: float
    """of all GPU time in the trace"""
    stacks: tuple[LaunchStack, ...]
    """the most expensive first"""
    phases: Phases | None
    """of launches whose call was recorded; None where not asked for"""
    shape: KernelShape | None
    """how it was launched; None where not asked for, and for what is no kernel"""

    @property
    def key(self) -> str:
        return f"{self.name} {self.detail}" if self.detail else self.name

    @property
    def total_ns(self) -> int:
        return self.stats.total

    @property
    def count(self) -> int:
        return self.stats.count

    @property
    def average_ns(self) -> int:
        return self.stats.average

    @property
    def shortest_ns(self) -> int:
        return self.stats.shortest

    @property
    def longest_ns(self) -> int:
        return self.stats.longest


@dataclass(frozen=True, slots=True)
class KernelsResult:
    """Rows by GPU time, the largest first."""

    rows: tuple[KernelRow, ...]
    coverage: Coverage | None
    """None where lines were not asked for"""
    group_by: GroupBy
    total_matched: int

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


def top_kernels(
    trace: Trace,
    limit: int | None = None,
    own: tuple[str, ...] | None = None,
    group_by: GroupBy = "name",
    phases: bool = False,
    shapes: bool = False,
    lines: bool = True,
) -> KernelsResult:
    """Sum GPU time by kernel, copies and sets included, and list under each where it was launched.

    group_by: what makes rows; 'short' merges instantiations of one template, the others split a name by
    grid, by line, or by operator and shapes of its inputs. phases: time in the launching call and in the
    queue. shapes: grid, block, registers and the occupancy they allow. lines: False leaves out where kernels
    were launched, and with it reading calls and stacks, most of the time in a large file.

    Raises UsageError, and NotEnoughDataError if the trace has no GPU operation or lacks what was asked for.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    if not lines and (group_by in ("line", "shape") or phases):
        raise UsageError("totals alone have no lines, shapes of inputs or phases: those belong to calls")
    operations = trace.operations
    if not len(operations):
        raise NotEnoughDataError(trace.why_empty())
    own_row = trace.stacks.own_rows(Ownership(own or ())) if lines else full(1, 0, np.int32)
    duration = operations.duration_ns
    gpu_ns = int(duration.sum())
    covered = coverage(trace, own_row) if lines else None
    launched = _launch_shapes(trace) if shapes or group_by == "grid" else None
    group, groups = kernel_groups(trace, group_by, own_row, launched)
    stats = StatsByKey.of(group, duration, len(groups))
    ranked = stats.ranked([f"{label.name} {label.detail}" for label in groups])
    shown = ranked[:limit]
    stacks = _launch_stacks(trace, group, set(shown), own_row) if lines else {}
    kernel = np.where(operations.kind == OperationKind.KERNEL, group, -1).astype(np.int32)
    of_phases = PhasesByKey.of(trace, kernel, len(groups)) if phases else None
    of_shapes = kernel_shapes(trace, launched, kernel, shown) if shapes and launched else {}
    rows = tuple(
        KernelRow(
            name=groups[i].name,
            short_name=groups[i].short_name,
            kind=groups[i].kind,
            detail=groups[i].detail,
            stats=stats[i],
            share_frac=int(stats.total[i]) / gpu_ns if gpu_ns else 0.0,
            stacks=stacks.get(i, ()),
            phases=of_phases[i] if of_phases is not None else None,
            shape=of_shapes.get(i),
        )
        for i in shown
    )
    return KernelsResult(rows, covered, group_by, len(ranked))


def _launch_shapes(trace: Trace) -> LaunchShapes:
    found = trace.launch_shapes
    if found is None:
        raise NotEnoughDataError(f"{trace.path} does not say with which grids its kernels were launched")
    return found


def _launch_stacks(
    trace: Trace, group: I32, shown: set[int], own_row: I32
) -> dict[int, tuple[LaunchStack, ...]]:
    """Per group its launch places. Python looks at distinct (group, stack, phase) only."""
    found = trace.attribution
    place = np.where(own_row[found.stack] > 0, own_row[found.stack], found.stack)
    combined = (group.astype(np.int64) << 34) | (place.astype(np.int64) << 2) | found.phase
    number, distinct = dense(combined)
    total, count = _analysis.sum_by_key(number, trace.operations.duration_ns, len(distinct))
    sums: dict[tuple[int, tuple[Frame, ...], int], list[int]] = {}
    for i, value in enumerate(distinct.tolist()):
        kernel, row, phase = value >> 34, (value >> 2) & 0xFFFFFFFF, value & 3
        if kernel not in shown:
            continue
        frames = own_frames(trace.stacks, own_row, row) or trace.stacks.of(row)
        entry = sums.setdefault((kernel, frames, phase), [0, 0])
        entry[0] += int(total[i])
        entry[1] += int(count[i])
    by_kernel: dict[int, list[LaunchStack]] = {}
    for (kernel, frames, phase), (ns, launches) in sums.items():
        by_kernel.setdefault(kernel, []).append(LaunchStack(frames, Phase(phase).name.lower(), ns, launches))
    return {
        kernel: tuple(sorted(found, key=lambda s: (-s.gpu_ns, s.phase, s.frames)))
        for kernel, found in by_kernel.items()
    }
