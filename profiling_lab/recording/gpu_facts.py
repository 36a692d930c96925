# SPDX-License-Identifier: Apache-2.0
"""GPU properties from the CUDA driver, under the column names of TARGET_INFO_GPU."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

# CUdevice_attribute
_ATTRIBUTES = {
    "maxThreadsPerBlock": 1, "maxBlockDimX": 2, "maxBlockDimY": 3, "maxBlockDimZ": 4, "maxGridDimX": 5,
    "maxGridDimY": 6, "maxGridDimZ": 7, "maxShmemPerBlock": 8, "constantMemory": 9, "threadsPerWarp": 10,
    "maxRegistersPerBlock": 12, "smCount": 16, "l2CacheSize": 38, "asyncEngines": 40, "computeMajor": 75,
    "computeMinor": 76, "maxShmemPerSm": 81, "maxRegistersPerSm": 82, "maxShmemPerBlockOptin": 97,
    "maxBlocksPerSm": 106,
}  # fmt: skip
_CLOCK_KHZ, _INTEGRATED, _MEMORY_CLOCK_KHZ, _BUS_BITS, _THREADS_PER_SM = 13, 18, 36, 37, 39
_PCI_BUS, _PCI_DEVICE, _PCI_DOMAIN = 33, 34, 50


def gpus() -> list[dict[str, Any]]:
    """One dict per GPU that this process sees; empty without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    return [_gpu(cuda, index) for index in range(count.value)]


def _gpu(cuda: ctypes.CDLL, index: int) -> dict[str, Any]:
    device = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), index)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        return value.value if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0 else 0

    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, 256, device)
    memory = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    uuid = (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGetUuid_v2(ctypes.byref(uuid), device)
    text = bytes(uuid).hex()
    row: dict[str, Any] = {column: attribute(number) for column, number in _ATTRIBUTES.items()}
    warp = max(row["threadsPerWarp"], 1)
    bus, slot, domain = attribute(_PCI_BUS), attribute(_PCI_DEVICE), attribute(_PCI_DOMAIN)
    return row | {
        "id": index,
        "cuDevice": index,
        "name": name.value.decode(errors="replace"),
        "uuid": "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])),
        "busLocation": f"{domain:04x}:{bus:02x}:{slot:02x}.0",
        "isDiscrete": int(not attribute(_INTEGRATED)),
        "totalMemory": memory.value,
        # Two transfers per clock (DDR), bus width in bytes.
        "memoryBandwidth": 2 * attribute(_MEMORY_CLOCK_KHZ) * 1000 * (attribute(_BUS_BITS) // 8),
        "clockRate": attribute(_CLOCK_KHZ) * 1000,
        "maxWarpsPerSm": attribute(_THREADS_PER_SM) // warp,
        "smMajor": row["computeMajor"],
        "smMinor": row["computeMinor"],
    }


def system() -> dict[str, str]:
    """Properties of the machine under nsys' names, without personal data."""
    facts = {
        "CpuCores": str(os.cpu_count() or 0),
        "CpuArchitecture": platform.machine(),
        "OsDescription": platform.system(),
    }
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
            words = file.readline().split()
        facts["NvDriverVersion"] = next(
            word for word in words if word.replace(".", "").isdigit() and "." in word
        )
    except (OSError, StopIteration):
        pass
    return facts
