# SPDX-License-Identifier: Apache-2.0
"""The two kernels of E05 that can be repaired, on data from a generator."""

from __future__ import annotations

from typing import Any

from profiling_lab.exercises.kernel_repair import Case, Task, guarded

SIZES = ((1, 1), (33, 7), (250, 1031))
TILES = ((32, 32), (64, 96), (256, 1024))
FULL = (8192, 8192)
GRID_FASTER, TILES_FASTER = 3.8, 1.6


def _matrix(generator: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
    import torch

    values = torch.rand(shape, generator=generator, device=generator.device)
    return values, guarded(*shape, device=values.device)


def grid(generator: Any, size: int) -> Case:
    rows, cols = FULL if size < 0 else SIZES[size]
    values, out = _matrix(generator, (rows, cols))
    factor = 0.375  # exact in float32: the reference needs no rounding
    return Case((values, out, rows, cols, factor), (out,), lambda: [factor * values.double()])


def tiles(generator: Any, size: int) -> Case:
    rows, cols = FULL if size < 0 else TILES[size]
    values, out = _matrix(generator, (rows, cols))

    def flipped() -> list[Any]:
        split = values.view(rows // 32, 32, cols // 32, 32)
        return [split.transpose(1, 3).reshape(rows, cols)]

    return Case((values, out, rows, cols), (out,), flipped)


TASKS = (
    Task("run_scale_grid", grid, GRID_FASTER),
    Task("run_flip_tiles", tiles, TILES_FASTER),
)
