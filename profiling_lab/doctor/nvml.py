# SPDX-License-Identifier: Apache-2.0
"""The driver and the GPUs, read through NVML: works without torch and without a CUDA toolkit."""

from __future__ import annotations

from dataclasses import dataclass

from profiling_lab.recording.energy.nvml import Nvml, NvmlError


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


def read_driver() -> Driver | str:
    """The driver, or one sentence with the reason why it cannot be queried."""
    try:
        nvml = Nvml()
    except NvmlError as error:
        return str(error)
    try:
        nvml.nvmlInit()
        try:
            cuda = nvml.nvmlSystemGetCudaDriverVersion()
            gpus = tuple(_read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
            version = nvml.nvmlSystemGetDriverVersion()
            return Driver(version, (cuda // 1000, cuda % 1000 // 10), gpus)
        finally:
            nvml.nvmlShutdown()
    except NvmlError as error:
        return f"the NVIDIA driver does not respond: {error}"


def _read_gpu(nvml: Nvml, index: int) -> InstalledGpu:
    gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    capability = nvml.nvmlDeviceGetCudaComputeCapability(gpu)
    return InstalledGpu(nvml.nvmlDeviceGetName(gpu), capability, nvml.nvmlDeviceGetMemoryInfo(gpu).total)
