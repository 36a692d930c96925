# SPDX-License-Identifier: Apache-2.0
"""The driver and the GPUs, read through NVML: works without torch and without a CUDA toolkit."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstalledGpu:
    name: str
    compute_capability: tuple[int, int]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Driver:
    version: str
    cuda: tuple[int, int]  # the newest CUDA that it supports
    gpus: tuple[InstalledGpu, ...]


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def read_driver() -> Driver | str:
    """The driver, or one sentence with the reason why it cannot be queried."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "no NVIDIA driver (libnvidia-ml.so.1 was not found)"
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    status = nvml.nvmlInit_v2()
    if status != 0:
        return f"the NVIDIA driver does not respond: {nvml.nvmlErrorString(status).decode()}"
    try:
        version = ctypes.create_string_buffer(96)
        cuda = ctypes.c_int()
        count = ctypes.c_uint()
        nvml.nvmlSystemGetDriverVersion(version, len(version))
        nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda))
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        gpus = tuple(_read_gpu(nvml, index) for index in range(count.value))
        return Driver(version.value.decode(), (cuda.value // 1000, cuda.value % 1000 // 10), gpus)
    finally:
        nvml.nvmlShutdown()


def _read_gpu(nvml: ctypes.CDLL, index: int) -> InstalledGpu:
    device = ctypes.c_void_p()
    name = ctypes.create_string_buffer(96)
    major, minor = ctypes.c_int(), ctypes.c_int()
    memory = _Memory()
    nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
    nvml.nvmlDeviceGetName(device, name, len(name))
    nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
    nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    return InstalledGpu(name.value.decode(), (major.value, minor.value), memory.total)
