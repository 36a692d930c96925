# SPDX-License-Identifier: Apache-2.0
"""Launch configurations of kernels: grid, block, registers, shared memory. Read on first use."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import FARTHEST_NS, OperationKind, combined, full
from profiling_lab.trace.extras import LaunchShape, LaunchShapes
from profiling_lab.trace.nsys.operations import TABLES
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.source import Tables

_GRID, _BLOCK = ("gridX", "gridY", "gridZ"), ("blockX", "blockY", "blockZ")
_RESOURCES = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory")


def read_launch_shapes(file: SqliteFile, whole: Tables) -> LaunchShapes | None:
    """The shapes of all kernels; None if the file has none."""
    table = file.newest(TABLES[OperationKind.KERNEL])
    have = set(file.columns(table)) if table else set()
    if table is None or not {*_GRID, *_BLOCK} <= have:
        return None
    unknown = -1
    rows = file.select(
        table, {"start": 0, "end": 0, **dict.fromkeys((*_GRID, *_BLOCK, *_RESOURCES), unknown)}
    )
    # The same rows and order as in read_operations: kernels come first.
    earliest, latest = np.minimum(rows["start"], rows["end"]), np.maximum(rows["start"], rows["end"])
    kept = (earliest > -FARTHEST_NS) & (latest < FARTHEST_NS)
    columns = [np.clip(rows[name][kept], unknown, (1 << 31) - 1) for name in (*_GRID, *_BLOCK, *_RESOURCES)]
    number, distinct = combined(*columns)
    operations = whole.operations
    out = full(len(operations), -1, np.int32)
    known = np.array([values[0] >= 0 for values in distinct] or [False], dtype=bool)[number]
    out[np.flatnonzero(operations.kind == OperationKind.KERNEL)] = np.where(known, number, -1)
    return LaunchShapes(out, tuple(_shape(values) for values in distinct))


def _shape(values: tuple[int, ...]) -> LaunchShape:
    registers, static, dynamic = (value if value >= 0 else None for value in values[6:])
    grid, block = (tuple(max(value, 0) for value in part) for part in (values[:3], values[3:6]))
    return LaunchShape(
        grid=(grid[0], grid[1], grid[2]),
        block=(block[0], block[1], block[2]),
        registers=registers,
        shared_bytes=None if static is None or dynamic is None else static + dynamic,
    )
