# SPDX-License-Identifier: Apache-2.0
"""How the kernels of a row were launched, and how full that can make the GPU."""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.kernels.occupancy import occupancy_frac, sm_frac, theoretical
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, combined
from profiling_lab.trace.extras import Device, LaunchShape, LaunchShapes
from profiling_lab.trace.operation_classes import device_tracks
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class KernelShape:
    """The launches of one row. Estimates are weighted by time; None where the file does not say enough."""

    usual: LaunchShape
    """the one with most of the time"""
    shapes: int
    """distinct ones"""
    sm_frac: float | None
    """share of SMs that have a block"""
    occupancy_frac: float | None
    """warps that are resident, of those that the GPU can hold"""
    limited_by: str
    """what keeps an SM from holding more blocks of the usual shape; '' where that is not known"""


def kernel_shapes(trace: Trace, found: LaunchShapes, kernel: I32, shown: list[int]) -> dict[int, KernelShape]:
    """By key, for the keys that are shown. kernel: a key per operation, -1 for what is none."""
    known = trace.devices
    track, numbers = device_tracks(trace.operations)
    rows = np.flatnonzero(np.isin(kernel, shown) & (found.number >= 0))
    number, distinct = combined(kernel[rows], found.number[rows], track[rows])
    weight, _ = _analysis.sum_by_key(
        number, np.ascontiguousarray(trace.operations.duration_ns[rows]), len(distinct)
    )
    parts: dict[int, list[tuple[int, LaunchShape, Device | None]]] = {}
    for (key, shape, device), ns in zip(distinct, weight.tolist(), strict=True):
        parts.setdefault(key, []).append((ns, found.shapes[shape], known.get(numbers[device])))
    return {key: _of(part) for key, part in parts.items()}


def _of(parts: list[tuple[int, LaunchShape, Device | None]]) -> KernelShape:
    ns_of: dict[LaunchShape, int] = {}
    for ns, shape, _ in parts:
        ns_of[shape] = ns_of.get(shape, 0) + ns
    usual = max(ns_of, key=lambda shape: (ns_of[shape], shape.blocks))
    device = next((device for _, shape, device in parts if shape == usual and device), None)
    limit = theoretical(device, usual) if device else None
    return KernelShape(
        usual=usual,
        shapes=len(ns_of),
        sm_frac=_weighted([(ns, sm_frac(device, shape)) for ns, shape, device in parts if device]),
        occupancy_frac=_weighted(
            [(ns, occupancy_frac(device, shape)) for ns, shape, device in parts if device]
        ),
        limited_by=limit[1] if limit else "",
    )


def _weighted(values: list[tuple[int, float | None]]) -> float | None:
    """By time; kernels without any count equally. None if any is unknown: a part must not be shown as all."""
    known = [(ns, value) for ns, value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    all_ns = sum(ns for ns, _ in known)
    if not all_ns:
        return sum(value for _, value in known) / len(known)
    return sum(ns * value for ns, value in known) / all_ns
