# SPDX-License-Identifier: Apache-2.0
"""How full a launch can make a GPU: an estimate from its shape, not a measurement.

The formulas of torch.profiler's TensorBoard plugin: the SMs that get a block at all, min(blocks / SMs, 1),
and the warps that are resident, min(warps of the launch / warps that all SMs can hold, occupancy of one SM).
What one SM can hold is what its warps, blocks, registers and shared memory allow, given out in the units of
the hardware.
"""

from __future__ import annotations

import math

from profiling_lab.trace.extras import Device, LaunchShape

_WARP = 32
_REGISTER_UNIT = 256
"""registers are given to warps in this many"""
_WARP_UNIT = 4
"""an SM has four schedulers, each with its share of the registers"""
_RESERVED_BYTES = 1024
"""of shared memory per block, kept by the system since compute capability 8"""


def sm_frac(device: Device, shape: LaunchShape) -> float | None:
    """Multiprocessors that have a block."""
    if not device.sm_count:
        return None
    return min(shape.blocks / device.sm_count, 1.0)


def occupancy_frac(device: Device, shape: LaunchShape) -> float | None:
    """Warps that are resident, of those that the GPU can hold."""
    resident = theoretical(device, shape)
    if resident is None or not device.sm_count or not device.warps_per_sm:
        return None
    warps = math.ceil(shape.threads / _WARP) * shape.blocks
    return min(warps / (device.sm_count * device.warps_per_sm), resident[0])


def theoretical(device: Device, shape: LaunchShape) -> tuple[float, str] | None:
    """The share of an SM's warps that fit, and what limits it; None where the file does not say enough."""
    warps = math.ceil(shape.threads / _WARP)
    if not device.warps_per_sm or not warps or shape.registers is None or shape.shared_bytes is None:
        return None
    if not device.registers_per_sm or not device.shared_bytes_per_sm:
        return None
    limits = {"warps": device.warps_per_sm // warps}
    if device.blocks_per_sm:
        limits["blocks"] = device.blocks_per_sm
    if shape.registers:
        per_warp = _round_up(shape.registers * _WARP, _REGISTER_UNIT)
        fitting = device.registers_per_sm // per_warp // _WARP_UNIT * _WARP_UNIT
        limits["registers"] = fitting // warps
    modern = (device.compute or 0) >= 8
    shared = _round_up(shape.shared_bytes + (_RESERVED_BYTES if modern else 0), 128 if modern else 256)
    if shared:
        limits["shared memory"] = device.shared_bytes_per_sm // shared
    # The first of equals: warps are the limit where nothing holds less than they allow.
    by, blocks = min(limits.items(), key=lambda item: item[1])
    # A kernel that ran fitted at least once.
    return min(max(blocks, 1) * warps / device.warps_per_sm, 1.0), by


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
