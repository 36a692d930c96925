# SPDX-License-Identifier: Apache-2.0
"""Read one GPU through NVML, with NVIDIA's library nvidia-ml-py (its module is pynvml).

NVML numbers the GPUs of the machine, CUDA those that CUDA_VISIBLE_DEVICES lists, in another order. So the GPU
is looked up by what CUDA calls its UUID or, failing that, by its place on the PCI bus.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from profiling_lab.recording import gpu_facts
from profiling_lab.utils.devices import allocator

_LOOKUP_TIMEOUT_S = 60
_LOOKUP = "import json, runpy, sys; print(json.dumps(runpy.run_path(sys.argv[1])['gpus']()))"

# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html, without those that are no limit
_LIMITS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal, software",
    0x40: "thermal, hardware",
    0x80: "power brake",
}

Read = Callable[[Any, Any], float]
READINGS: dict[str, Read] = {
    "gpu_utilization_percent": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "memory_utilization_percent": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).memory,
    "gpu_memory_used_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    "sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
}


class NvmlError(Exception):
    """Why NVML, or one of its readings, is not available: one sentence."""


class NvmlGpu:
    """One GPU by its CUDA number. Raises NvmlError if it cannot be read."""

    def __init__(self, cuda_index: int) -> None:
        try:
            self._nvml: Any = import_module("pynvml")
        except Exception:
            raise NvmlError("nvidia-ml-py is not installed: pip install 'profiling-lab[nvml]'") from None
        try:
            self._nvml.nvmlInit()
        except Exception as error:
            raise NvmlError(f"NVML does not work here: {error}") from None
        try:
            self._gpu = self._find(cuda_index)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """NVML counts its users: others in this process keep it."""
        try:
            self._nvml.nvmlShutdown()
        except Exception:  # nothing is left to be done, and nothing depends on it
            return

    def read(self, name: str) -> float:
        """One of READINGS. Raises NvmlError."""
        return float(self._ask(READINGS[name]))

    def limits(self) -> set[str]:
        """What limits the clocks now. Raises NvmlError."""
        mask = int(self._ask(lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)))
        return {name for bit, name in _LIMITS.items() if mask & bit}

    def energy_j(self) -> float:
        """Since the driver was loaded. Raises NvmlError."""
        return float(self._ask(lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu))) / 1e3

    def name(self) -> str:
        return self._text(lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu))

    def uuid(self) -> str:
        return self._text(lambda nvml, gpu: nvml.nvmlDeviceGetUUID(gpu))

    def _ask(self, read: Callable[[Any, Any], Any]) -> Any:
        try:
            return read(self._nvml, self._gpu)
        except Exception as error:  # of the library, or a function that it does not have
            raise NvmlError(str(error) or type(error).__name__) from None

    def _text(self, read: Callable[[Any, Any], str | bytes]) -> str:
        text = self._ask(read)  # bytes in libraries before 11.5
        return text.decode(errors="replace") if isinstance(text, bytes) else str(text)

    def _find(self, index: int) -> Any:
        nvml = self._nvml
        if index == 0 and "CUDA_VISIBLE_DEVICES" not in os.environ:
            try:
                if nvml.nvmlDeviceGetCount() == 1:
                    return nvml.nvmlDeviceGetHandleByIndex(0)
            except Exception as error:
                raise NvmlError(f"NVML lists no GPUs: {error}") from None
        gpus = _cuda_gpus()
        if index >= len(gpus):
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            within = "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible}"
            raise NvmlError(f"CUDA sees {len(gpus)} GPUs{within}, none with the number {index}")
        uuid, bus = gpus[index]["uuid"], gpus[index]["busLocation"]
        reason: object = None
        for find, key in (
            (nvml.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}"),
            (nvml.nvmlDeviceGetHandleByUUID, f"MIG-{uuid}"),
            (nvml.nvmlDeviceGetHandleByPciBusId, bus),
        ):
            try:
                return find(key.encode())
            except Exception as error:
                reason = error
        raise NvmlError(f"NVML does not know the GPU {uuid} at {bus}: {reason}")


def _cuda_gpus() -> list[dict[str, Any]]:
    """The GPUs as CUDA numbers them here. Where CUDA is not in use yet, another process asks it: a program
    that has initialised CUDA can no longer fork workers that use it.
    """
    if allocator() is not None:
        return gpu_facts.gpus()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _LOOKUP, gpu_facts.__file__],
            capture_output=True,
            text=True,
            timeout=_LOOKUP_TIMEOUT_S,
            check=True,
        )
        gpus: list[dict[str, Any]] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NvmlError(f"CUDA could not be asked for its GPUs: {error}") from None
    return gpus
