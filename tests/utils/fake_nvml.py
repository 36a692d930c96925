# SPDX-License-Identifier: Apache-2.0
"""A stand-in for NVML, whose GPUs answer as they are told."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from profiling_lab.recording.energy import nvml as binding
from profiling_lab.recording.energy.nvml import Nvml, NvmlError


class FakeGpu:
    def __init__(self, uuid: str, bus: str) -> None:
        self.uuid, self.bus = uuid, bus
        self.utilization, self.memory_utilization = 50, 20
        self.used, self.power_mw, self.energy_mj = 4 << 30, 300_000, 1_000_000
        self.sm_mhz, self.memory_mhz, self.celsius, self.limits = 1980, 3201, 45, 0


class FakeNvml:
    """broken: function -> what it does instead of answering."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = Nvml.NVML_CLOCK_SM, Nvml.NVML_CLOCK_MEM
    NVML_TEMPERATURE_GPU = Nvml.NVML_TEMPERATURE_GPU

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = gpus
        self.users = 0
        self.broken: dict[str, Callable[[], Any]] = {}
        read: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetCount": lambda: len(gpus),
            "nvmlDeviceGetHandleByIndex": lambda index: gpus[index],
            "nvmlDeviceGetHandleByUUID": lambda uuid: self._one(lambda gpu: gpu.uuid, uuid),
            "nvmlDeviceGetHandleByPciBusId": lambda bus: self._one(lambda gpu: gpu.bus, bus),
            "nvmlDeviceGetName": lambda gpu: "Fake GPU",
            "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
            "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(
                gpu=gpu.utilization, memory=gpu.memory_utilization
            ),
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(used=gpu.used, total=80 << 30),
            "nvmlDeviceGetPowerUsage": lambda gpu: gpu.power_mw,
            "nvmlDeviceGetClockInfo": lambda gpu, kind: gpu.sm_mhz if kind == 1 else gpu.memory_mhz,
            "nvmlDeviceGetTemperature": lambda gpu, kind: gpu.celsius,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu.limits,
            "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: gpu.energy_mj,
        }
        assert set(read) <= set(dir(Nvml)), "what it stands for has these functions"
        for name, function in read.items():
            setattr(self, name, self._breakable(name, function))

    def nvmlInit(self) -> None:
        if "nvmlInit" in self.broken:
            self.broken["nvmlInit"]()
        self.users += 1

    def nvmlShutdown(self) -> None:
        self.users -= 1

    def _breakable(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*arguments: Any) -> Any:
            assert self.users > 0, f"{name} without nvmlInit"
            return self.broken[name]() if name in self.broken else function(*arguments)

        return answer

    def _one(self, key: Callable[[FakeGpu], str], wanted: bytes) -> FakeGpu:
        for gpu in self.gpus:
            if key(gpu).encode() == wanted:
                return gpu
        raise NvmlError("Not Found")


def refuse(text: str = "Not Supported") -> Callable[[], Any]:
    def fail() -> Any:
        raise NvmlError(text)

    return fail


def install(monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu) -> FakeNvml:
    fake = FakeNvml(*gpus)
    monkeypatch.setattr(binding, "Nvml", lambda: fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake
