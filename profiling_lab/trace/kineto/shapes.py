# SPDX-License-Identifier: Apache-2.0
"""Launch configurations and operator input shapes of torch.profiler, decoded on first use."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from profiling_lab.trace.columns import dense
from profiling_lab.trace.extras import InputShapes, LaunchShape, LaunchShapes
from profiling_lab.trace.facts import whole_number
from profiling_lab.trace.kineto.events import ChromeEvents

_LARGEST = (1 << 31) - 1


def launch_shapes(events: ChromeEvents) -> LaunchShapes | None:
    """Per operation; None if no kernel has grid and block."""
    number, texts = dense(events["operations"]["launch"])
    launches = [_launch(events.texts[i]) if i >= 0 else None for i in texts.tolist()]
    distinct = {launch: i for i, launch in enumerate(dict.fromkeys(found for found in launches if found))}
    rows = np.array([-1 if found is None else distinct[found] for found in [*launches, None]], dtype=np.int32)
    return LaunchShapes(rows[number], tuple(distinct)) if distinct else None


def input_shapes(events: ChromeEvents) -> InputShapes | None:
    """Per operator; None if none were recorded."""
    number, texts = dense(events["operators"]["input_dims"])
    shapes = [_spaced(events.texts[i]) if i >= 0 else "" for i in texts.tolist()]
    distinct = {shape: i for i, shape in enumerate(dict.fromkeys(["", *shapes]))}
    rows = np.array([distinct[shape] for shape in [*shapes, ""]], dtype=np.int32)
    return InputShapes(rows[number], tuple(distinct)) if len(distinct) > 1 else None


def _launch(json: str) -> LaunchShape | None:
    args = _decoded(json)
    if not isinstance(args, dict):
        return None
    grid, block = _three(args.get("grid")), _three(args.get("block"))
    if grid is None or block is None:
        return None
    registers, shared_bytes = _small(args.get("registers per thread")), _small(args.get("shared memory"))
    return LaunchShape(
        grid, block, registers if registers >= 0 else None, shared_bytes if shared_bytes >= 0 else None
    )


def _three(value: Any) -> tuple[int, int, int] | None:
    numbers = [_small(number) for number in value] if isinstance(value, list) else []
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 and min(numbers) >= 0 else None


def _small(value: Any) -> int:
    number = whole_number(value)
    return number if 0 <= number <= _LARGEST else -1


def _spaced(json: str) -> str:
    """Normalise white space, which differs between torch versions."""
    dims = _decoded(json)
    return str(dims).replace("'", '"') if isinstance(dims, list) else ""


def _decoded(json: str) -> Any:
    try:
        return msgspec.json.decode(json)
    except (msgspec.MsgspecError, RecursionError):
        return None
