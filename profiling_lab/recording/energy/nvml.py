# SPDX-License-Identifier: Apache-2.0
"""The functions of NVML that this project needs, under their own names (libnvidia-ml, a part of the driver).

NVML numbers the GPUs of the machine, CUDA those that CUDA_VISIBLE_DEVICES lists, in another order. So a GPU
is looked up by what CUDA calls its UUID or, failing that, by its place on the PCI bus.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, TypeAlias

OVERRIDE = "PROFILING_LAB_NVML"
"""a library to load instead of the driver's"""
_LIBRARY = "libnvidia-ml.so.1"
_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT
_NOT_FOUND, _INSUFFICIENT_SIZE = 6, 7  # NVML_ERROR_...
_MOST = 1 << 16
"""processes or samples: more are a mistake"""
_UINT, _INT, _ULONG = ctypes.c_uint, ctypes.c_int, ctypes.c_ulonglong


class NvmlError(Exception):
    """Why NVML, or one of its readings, is not available: one sentence. status: NVML's, if it gave one."""

    def __init__(self, why: str, status: int | None = None) -> None:
        super().__init__(why)
        self.status = status


class Memory(ctypes.Structure):
    _fields_ = (("total", _ULONG), ("free", _ULONG), ("used", _ULONG))


class Utilization(ctypes.Structure):
    _fields_ = (("gpu", _UINT), ("memory", _UINT))


class Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t"""

    _fields_ = (("pid", _UINT), ("memory", _ULONG), ("gpu_instance", _UINT), ("compute_instance", _UINT))


class ProcessSample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t"""

    _fields_ = (
        ("pid", _UINT),
        ("timestamp", _ULONG),
        ("sm_percent", _UINT),
        ("memory_percent", _UINT),
        ("encoder_percent", _UINT),
        ("decoder_percent", _UINT),
    )


class _Value(ctypes.Union):
    _fields_ = (("unsigned", _UINT), ("wide", _ULONG))


class _FieldValue(ctypes.Structure):
    _fields_ = (
        ("field", _UINT),
        ("scope", _UINT),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", _INT),
        ("status", _INT),
        ("value", _Value),
    )


class Nvml:
    """The loaded library. Every function raises NvmlError."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self) -> None:
        name = os.environ.get(OVERRIDE) or _LIBRARY
        try:
            self._library = ctypes.CDLL(name)
        except OSError:
            raise NvmlError(f"no NVIDIA driver ({name} was not found)") from None

    def nvmlInit(self) -> None:
        self._do("nvmlInit_v2")

    def nvmlShutdown(self) -> None:
        self._do("nvmlShutdown")

    def nvmlSystemGetDriverVersion(self) -> str:
        text = ctypes.create_string_buffer(96)
        self._do("nvmlSystemGetDriverVersion", text, len(text))
        return text.value.decode(errors="replace")

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return self._get("nvmlSystemGetCudaDriverVersion_v2", _INT)

    def nvmlDeviceGetCount(self) -> int:
        return self._get("nvmlDeviceGetCount_v2", _UINT)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self._handle("nvmlDeviceGetHandleByIndex_v2", _UINT(index))

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> Any:
        return self._handle("nvmlDeviceGetHandleByUUID", uuid)

    def nvmlDeviceGetHandleByPciBusId(self, bus: bytes) -> Any:
        return self._handle("nvmlDeviceGetHandleByPciBusId_v2", bus)

    def nvmlDeviceGetName(self, gpu: Any) -> str:
        return self._text("nvmlDeviceGetName", gpu)

    def nvmlDeviceGetUUID(self, gpu: Any) -> str:
        return self._text("nvmlDeviceGetUUID", gpu)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: Any) -> tuple[int, int]:
        major, minor = _INT(), _INT()
        self._do("nvmlDeviceGetCudaComputeCapability", gpu, ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def nvmlDeviceGetMemoryInfo(self, gpu: Any) -> Memory:
        out = Memory()
        self._do("nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(out))
        return out

    def nvmlDeviceGetUtilizationRates(self, gpu: Any) -> Utilization:
        out = Utilization()
        self._do("nvmlDeviceGetUtilizationRates", gpu, ctypes.byref(out))
        return out

    def nvmlDeviceGetPowerUsage(self, gpu: Any) -> int:
        """Milliwatts; an average over up to a second."""
        return self._get("nvmlDeviceGetPowerUsage", _UINT, gpu)

    def power_instant(self, gpu: Any) -> int:
        """Milliwatts at this moment: NVML_FI_DEV_POWER_INSTANT, of nvmlDeviceGetFieldValues."""
        asked = _FieldValue(field=_POWER_INSTANT)
        self._do("nvmlDeviceGetFieldValues", gpu, 1, ctypes.byref(asked))
        self._check("nvmlDeviceGetFieldValues", asked.status)
        return int(asked.value.unsigned)

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: Any) -> int:
        """Milliwatts."""
        return self._get("nvmlDeviceGetEnforcedPowerLimit", _UINT, gpu)

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: Any) -> int:
        """Millijoules since the driver was loaded."""
        return self._get("nvmlDeviceGetTotalEnergyConsumption", _ULONG, gpu)

    def nvmlDeviceGetClockInfo(self, gpu: Any, kind: int) -> int:
        return self._get("nvmlDeviceGetClockInfo", _UINT, gpu, kind)

    def nvmlDeviceGetTemperature(self, gpu: Any, sensor: int) -> int:
        return self._get("nvmlDeviceGetTemperature", _UINT, gpu, sensor)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: Any) -> int:
        return self._get("nvmlDeviceGetCurrentClocksThrottleReasons", _ULONG, gpu)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Any) -> list[Process]:
        function = "nvmlDeviceGetComputeRunningProcesses_v3"
        return self._list(Process, lambda count, out: self._do(function, gpu, count, out))

    def nvmlDeviceGetProcessUtilization(self, gpu: Any, since_us: int) -> list[ProcessSample]:
        """Samples later than this; none if no process did anything."""
        function = "nvmlDeviceGetProcessUtilization"
        since = _ULONG(since_us)
        try:
            return self._list(ProcessSample, lambda count, out: self._do(function, gpu, out, count, since))
        except NvmlError as error:
            if error.status == _NOT_FOUND:
                return []
            raise

    def _list(self, kind: Any, fill: Callable[[Any, Any], None]) -> list[Any]:
        """As many as there are: asked with more room until it is enough."""
        room = 0
        while True:
            count, out = _UINT(room), (kind * room)()
            try:
                fill(ctypes.byref(count), out if room else None)
            except NvmlError as error:
                if error.status != _INSUFFICIENT_SIZE or room >= _MOST:
                    raise
                room = max(2 * room, 2 * count.value, 16)  # some may begin meanwhile
            else:
                return list(out[: count.value])

    def _get(self, function: str, kind: Any, *arguments: Any) -> int:
        out = kind()
        self._do(function, *arguments, ctypes.byref(out))
        return int(out.value)

    def _text(self, function: str, gpu: Any) -> str:
        text = ctypes.create_string_buffer(96)
        self._do(function, gpu, text, len(text))
        return text.value.decode(errors="replace")

    def _handle(self, function: str, key: Any) -> Any:
        out = ctypes.c_void_p()
        self._do(function, key, ctypes.byref(out))
        return out

    def _do(self, function: str, *arguments: Any) -> None:
        try:
            call = getattr(self._library, function)
        except AttributeError:
            raise NvmlError(f"this driver has no {function}") from None
        self._check(function, call(*arguments))

    def _check(self, function: str, status: int) -> None:
        if status == 0:
            return
        try:
            describe = self._library.nvmlErrorString
            describe.restype = ctypes.c_char_p
            text = describe(status).decode(errors="replace")
        except (AttributeError, ValueError):
            text = f"error {status}"
        raise NvmlError(f"{function}: {text}", status)


Read: TypeAlias = Callable[[Any, Any], float]
READINGS: dict[str, Read] = {
    "gpu_utilization_percent": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "memory_utilization_percent": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).memory,
    "gpu_memory_used_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    "sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
}


class NvmlGpu:
    """One GPU, which `find` looks up in an initialised NVML. Raises NvmlError if it cannot be read."""

    def __init__(self, find: Callable[[Any], Any]) -> None:
        self._nvml: Any = Nvml()
        self._nvml.nvmlInit()
        try:
            self._gpu = find(self._nvml)
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
        return float(self.ask(READINGS[name]))

    def limits(self) -> set[str]:
        """What limits the clocks now. Raises NvmlError."""
        mask = int(self.ask(lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)))
        from profiling_lab.trace.extras import CLOCK_LIMITS  # numpy, which a recorded process does not need

        return {name for bit, name in CLOCK_LIMITS.items() if mask & bit}

    def energy_mj(self) -> int:
        """Since the driver was loaded. Raises NvmlError."""
        return int(self.ask(lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)))

    def name(self) -> str:
        return str(self.ask(lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu)))

    def uuid(self) -> str:
        return str(self.ask(lambda nvml, gpu: nvml.nvmlDeviceGetUUID(gpu)))

    def ask(self, read: Callable[[Any, Any], Any]) -> Any:
        try:
            return read(self._nvml, self._gpu)
        except Exception as error:
            raise NvmlError(str(error) or type(error).__name__) from None


def found_by(uuid: str, bus: str) -> Callable[[Any], Any]:
    """Finds the GPU that CUDA describes so; a part of a GPU (MIG) too."""

    def find(nvml: Any) -> Any:
        reason: object = None
        for look, key in (
            (nvml.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}"),
            (nvml.nvmlDeviceGetHandleByUUID, f"MIG-{uuid}"),
            (nvml.nvmlDeviceGetHandleByPciBusId, bus),
        ):
            try:
                return look(key.encode())
            except Exception as error:
                reason = error
        raise NvmlError(f"NVML does not know the GPU {uuid} at {bus}: {reason}")

    return find
