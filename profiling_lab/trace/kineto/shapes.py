# SPDX-License-Identifier: Apache-2.0
"""How torch.profiler's kernels were launched, and the shapes of operators' inputs; decoded when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from profiling_lab.trace.columns import I32, dense
from profiling_lab.trace.kineto.events import ChromeEvents, whole

_LARGEST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class NotedLaunch:
    """What a kernel's event says of its launch; -1 for what it does not."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    """per thread"""
    shared_bytes: int
    """per block, static and dynamic"""


def noted_launches(events: ChromeEvents) -> tuple[I32, tuple[NotedLaunch, ...]]:
    """Per operation a row of the distinct launches, -1 for what is no kernel or notes no grid and block."""
    number, texts = dense(events["operations"]["launch"])
    launches = [_launch(events.texts[i]) if i >= 0 else None for i in texts.tolist()]
    distinct = {launch: i for i, launch in enumerate(dict.fromkeys(found for found in launches if found))}
    rows = np.array([-1 if found is None else distinct[found] for found in [*launches, None]], dtype=np.int32)
    return rows[number], tuple(distinct)


def noted_input_dims(events: ChromeEvents) -> tuple[I32, tuple[str, ...]]:
    """Per operator a row of the distinct shapes, `[[64, 512], [512, 512]]`; -1 where none were recorded."""
    number, texts = dense(events["operators"]["input_dims"])
    shapes = [_spaced(events.texts[i]) if i >= 0 else "" for i in texts.tolist()]
    distinct = {shape: i for i, shape in enumerate(dict.fromkeys(shape for shape in shapes if shape))}
    rows = np.array([distinct.get(shape, -1) for shape in [*shapes, ""]], dtype=np.int32)
    return rows[number], tuple(distinct)


def _launch(json: str) -> NotedLaunch | None:
    args = _decoded(json)
    if not isinstance(args, dict):
        return None
    grid, block = _three(args.get("grid")), _three(args.get("block"))
    if grid is None or block is None:
        return None
    return NotedLaunch(
        grid, block, _small(args.get("registers per thread")), _small(args.get("shared memory"))
    )


def _three(value: Any) -> tuple[int, int, int] | None:
    numbers = [_small(number) for number in value] if isinstance(value, list) else []
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 and min(numbers) >= 0 else None


def _small(value: Any) -> int:
    number = whole(value)
    return number if 0 <= number <= _LARGEST else -1


def _spaced(json: str) -> str:
    """Versions of torch differ in blanks and line ends."""
    dims = _decoded(json)
    return str(dims).replace("'", '"') if isinstance(dims, list) else ""


def _decoded(json: str) -> Any:
    try:
        return msgspec.json.decode(json)
    except (msgspec.MsgspecError, RecursionError):
        return None
