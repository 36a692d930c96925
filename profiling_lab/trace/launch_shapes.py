# SPDX-License-Identifier: Apache-2.0
"""With how many blocks and threads, registers and bytes kernels were launched, read when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiling_lab.analysis.stats import combined
from profiling_lab.trace.columns import I32, OperationKind, full
from profiling_lab.trace.kineto.source import ChromeSource
from profiling_lab.trace.nsys.operations import FARTHEST_NS, TABLES
from profiling_lab.trace.nsys.source import SqliteSource
from profiling_lab.trace.trace import Trace

_GRID, _BLOCK = ("gridX", "gridY", "gridZ"), ("blockX", "blockY", "blockZ")
_RESOURCES = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory")


@dataclass(frozen=True, slots=True, order=True)
class LaunchShape:
    """One way to launch a kernel. None stands for what the file does not say."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int | None
    """per thread"""
    shared_bytes: int | None
    """per block, static and dynamic"""

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """per block"""
        return self.block[0] * self.block[1] * self.block[2]

    def __str__(self) -> str:
        """`<<<132x1x1, 256x1x1>>>`"""
        return f"<<<{'x'.join(map(str, self.grid))}, {'x'.join(map(str, self.block))}>>>"


@dataclass(frozen=True, slots=True)
class LaunchShapes:
    """A number per operation, -1 for what is no kernel or has none."""

    number: I32
    shapes: tuple[LaunchShape, ...]


def read_launch_shapes(trace: Trace) -> LaunchShapes | None:
    """The shapes of the trace's kernels; None where the file has none."""
    if isinstance(trace.source, ChromeSource):
        return _noted_by_torch(trace, trace.source)
    if not isinstance(trace.source, SqliteSource):
        return None
    table = trace.file.newest(TABLES[OperationKind.KERNEL])
    have = set(trace.file.columns(table)) if table else set()
    if table is None or not {*_GRID, *_BLOCK} <= have:
        return None
    unknown = -1
    rows = trace.file.select(
        table, {"start": 0, "end": 0, **dict.fromkeys((*_GRID, *_BLOCK, *_RESOURCES), unknown)}
    )
    # The rows that read_operations keeps, in its order: kernels come first.
    earliest, latest = np.minimum(rows["start"], rows["end"]), np.maximum(rows["start"], rows["end"])
    kept = (earliest > -FARTHEST_NS) & (latest < FARTHEST_NS)
    columns = [np.clip(rows[name][kept], unknown, (1 << 31) - 1) for name in (*_GRID, *_BLOCK, *_RESOURCES)]
    number, distinct = combined(*columns)
    whole = trace.whole.operations
    of_whole = full(len(whole), -1, np.int32)
    known = np.array([values[0] >= 0 for values in distinct] or [False], dtype=bool)[number]
    of_whole[np.flatnonzero(whole.kind == OperationKind.KERNEL)] = np.where(known, number, -1)
    return LaunchShapes(of_whole[trace.operation_rows], tuple(_shape(values) for values in distinct))


def _noted_by_torch(trace: Trace, source: ChromeSource) -> LaunchShapes | None:
    number, launches = source.noted_launches()
    if not launches:
        return None
    shapes = (
        LaunchShape(
            grid=noted.grid,
            block=noted.block,
            registers=None if noted.registers < 0 else noted.registers,
            shared_bytes=None if noted.shared_bytes < 0 else noted.shared_bytes,
        )
        for noted in launches
    )
    return LaunchShapes(number[trace.operation_rows], tuple(shapes))


def _shape(values: tuple[int, ...]) -> LaunchShape:
    registers, static, dynamic = (value if value >= 0 else None for value in values[6:])
    grid, block = (tuple(max(value, 0) for value in part) for part in (values[:3], values[3:6]))
    return LaunchShape(
        grid=(grid[0], grid[1], grid[2]),
        block=(block[0], block[1], block[2]),
        registers=registers,
        shared_bytes=None if static is None or dynamic is None else static + dynamic,
    )
