# SPDX-License-Identifier: Apache-2.0
"""Whether another process uses the GPU, with a stand-in for NVML."""

from __future__ import annotations

from typing import Any

import pytest
from utils.fake_nvml import FakeNvml, refuse

from profiling_lab.recording.energy.nvml import Process, ProcessSample
from profiling_lab.utils.gpu_sharing import OtherProcesses, Sharing


@pytest.fixture
def used(nvml: FakeNvml) -> dict[int, list[tuple[int, int]]]:
    """process -> (microseconds, per cent) of its samples; all of them are on the GPU from the start."""
    (gpu,) = nvml.gpus
    gpu.utilization = 0
    processes: dict[int, list[tuple[int, int]]] = {}

    def samples(gpu: Any, since: int) -> list[Any]:
        return [
            ProcessSample(pid=pid, sm_percent=percent, timestamp=at)
            for pid, every in processes.items()
            for at, percent in every
            if at > since
        ]

    nvml.nvmlDeviceGetComputeRunningProcesses = lambda gpu: [Process(pid=p) for p in processes]  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetProcessUtilization = samples  # type: ignore[attr-defined]
    return processes


LATER = 1 << 62


def asked() -> Sharing:
    others = OtherProcesses(0)
    try:
        others.begin()
        return others.ask()
    finally:
        others.close()


def test_a_process_that_computes_meanwhile(used: dict[int, list[tuple[int, int]]], nvml: FakeNvml) -> None:
    used[41] = [(LATER, 10), (LATER, 55)]
    used[42] = [(5, 90)]  # before the measurement
    used[43] = [(LATER, 0)]
    found = asked()
    assert found == Sharing({41: 55}, 0, "") and found.is_shared is True
    assert found.sentence == "the GPU is shared: meanwhile process 41 (55 %) used it too"
    assert nvml.users == 0, "NVML is given back"


def test_a_process_that_came_later_may_be_this_one(used: dict[int, list[tuple[int, int]]]) -> None:
    """In a container its number is not the one that NVML says."""
    others = OtherProcesses(0)
    used[977] = [(LATER, 100)]
    assert others.ask().is_shared is False and others.ask().sentence == ""
    others.close()


def test_alone(used: dict[int, list[tuple[int, int]]], nvml: FakeNvml) -> None:
    assert asked() == Sharing({}, 0, "") and asked().is_shared is False
    nvml.gpus[0].utilization = 4  # a desktop
    assert asked().is_shared is False


def test_a_gpu_that_was_busy_before(used: dict[int, list[tuple[int, int]]], nvml: FakeNvml) -> None:
    nvml.gpus[0].utilization = 70
    assert asked().sentence == "the GPU is shared: it was busy 70 % of the time before this began"


def test_unknown_is_not_alone(nvml: FakeNvml) -> None:
    nvml.gpus[0].utilization = 0
    found = asked()  # a library without these functions
    assert found.is_shared is None and found.busy_before_percent == 0
    assert found.sentence.startswith("whether other processes used the GPU is unknown: ")
    assert "nvmlDeviceGetComputeRunningProcesses" in found.sentence
    nvml.gpus[0].utilization = 99
    assert asked().is_shared is True
    nvml.broken["nvmlDeviceGetUtilizationRates"] = refuse()
    assert asked().is_shared is None


def test_an_error_at_the_end_does_no_harm(used: dict[int, list[tuple[int, int]]], nvml: FakeNvml) -> None:
    nvml.nvmlDeviceGetProcessUtilization = lambda gpu, since: refuse("GPU is lost")()  # type: ignore[attr-defined]
    assert asked() == Sharing({}, 0, "GPU is lost")
