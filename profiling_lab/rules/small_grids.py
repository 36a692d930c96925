# SPDX-License-Identifier: Apache-2.0
"""Kernels whose grid leaves most of the GPU free: what limits them is neither its memory nor its compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from profiling_lab.rules.finding import Threshold
from profiling_lab.rules.view import F64, Mask, View
from profiling_lab.trace.columns import I64
from profiling_lab.trace.extras import LaunchShape
from profiling_lab.trace.operation_classes import device_tracks

FILLED = Threshold(
    "filled", "kernels that fill", 0.25, "of the SMs, at least", "ours: fewer cannot use the bandwidth"
)
MORE_BLOCKS = (
    "its grid leaves most SMs free: give it more blocks (larger batches, or one call for several of them), "
    "or run it at once with other kernels, on streams of their own"
)


def small_grids(view: View) -> Mask:
    """Per operation, whether it is a kernel with blocks for too few SMs. False where the trace does not say
    how many blocks or SMs there are.
    """
    return np.asarray(view.kernels & (blocks_of(view) < view[FILLED] * sms_of(view)))


def filled(view: View) -> F64:
    """Per operation the part of the SMs that its blocks fill: 0 for what is no kernel, 1 where the trace does
    not say it.
    """
    blocks = blocks_of(view)
    part = np.where(np.isfinite(blocks), blocks / np.maximum(sms_of(view), 1), 1.0)
    return np.where(view.kernels, np.minimum(part, 1.0), 0.0)


def unfilled_ns(view: View, rows: I64) -> I64:
    """How long each of these kernels ran while all that ran on its GPU filled fewer SMs than FILLED."""
    operations, part, out = view.operations, filled(view), np.zeros(len(rows), dtype=np.int64)
    for _, _, of_device in view.devices:
        mine = np.flatnonzero(np.isin(rows, of_device))
        kernels = of_device[view.kernels[of_device]]
        times = np.concatenate([operations.start_ns[kernels], operations.end_ns[kernels]])
        order = np.argsort(times, kind="stable")
        times = times[order]
        # Of a sum of numbers less than this is what rounding left.
        runs = np.cumsum(np.concatenate([part[kernels], -part[kernels]])[order]) < view[FILLED] - 1e-9
        low_ns = np.concatenate([[0], np.cumsum(np.where(runs[:-1], np.diff(times), 0))])
        began, ended = operations.start_ns[rows[mine]], operations.end_ns[rows[mine]]
        out[mine] = low_ns[np.searchsorted(times, ended)] - low_ns[np.searchsorted(times, began)]
    return out


def sms_of(view: View) -> I64:
    """Per operation how many SMs its GPU has, 0 unknown."""
    track, numbers = device_tracks(view.operations)
    devices = view.trace.devices
    sms = [(gpu.sm_count or 0) if (gpu := devices.get(each)) else 0 for each in numbers]
    return np.array(sms, dtype=np.int64)[track]


def blocks_of(view: View) -> F64:
    """Per operation the number of its blocks; inf where the trace does not say it."""
    return _of_shapes(view, lambda shape: shape.blocks)


def threads_of(view: View) -> F64:
    """Per operation the number of its threads; inf where the trace does not say it."""
    return _of_shapes(view, lambda shape: shape.blocks * shape.threads)


def _of_shapes(view: View, number: Callable[[LaunchShape], int]) -> F64:
    shapes = view.trace.launch_shapes
    if shapes is None:
        return np.full(len(view.operations), np.inf)
    return np.array([*(float(number(shape)) for shape in shapes.shapes), np.inf])[shapes.number]
