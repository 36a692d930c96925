# SPDX-License-Identifier: Apache-2.0
"""GPUMonitor with a stand-in for NVML: what it samples, whose GPU, and that it never harms the program."""

from __future__ import annotations

import json
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from utils.fake_nvml import FakeGpu, FakeNvml, install, refuse

from profiling_lab.errors import UsageError
from profiling_lab.recording import gpu_facts
from profiling_lab.recording.energy import nvml as binding
from profiling_lab.utils import gpu_monitor
from profiling_lab.utils import nvml as nvml_module
from profiling_lab.utils.easy_profiler import GPUMonitor

NEVER = 3600.0
"""an interval at which only the samples at the start and the end are taken"""
READINGS = {
    "gpu_utilization_percent", "memory_utilization_percent", "gpu_memory_used_bytes", "power_w",
    "sm_clock_mhz", "memory_clock_mhz", "temperature_c",
}  # fmt: skip


def test_a_block_has_its_first_and_last_sample_however_short(nvml: FakeNvml) -> None:
    with GPUMonitor(interval=NEVER) as monitor:
        (gpu,) = nvml.gpus
        gpu.power_mw, gpu.energy_mj, gpu.used, gpu.limits = 500_000, 1_250_000, 6 << 30, 0x4 | 0x1
    summary = monitor.get_summary()
    assert summary == monitor.summary()
    assert summary["samples"] == 2 == len(monitor.samples)
    assert summary["power_w"] == {"mean": 400.0, "min": 300.0, "max": 500.0}
    assert summary["gpu_memory_used_bytes"] == {"mean": 5 << 30, "min": 4 << 30, "max": 6 << 30}
    assert (
        summary["gpu_utilization_percent"]["mean"] == 50
        and summary["memory_utilization_percent"]["max"] == 20
    )
    assert summary["sm_clock_mhz"]["min"] == 1980 and summary["memory_clock_mhz"]["min"] == 3201
    assert summary["temperature_c"]["max"] == 45
    assert summary["energy_j"] == 250.0
    assert summary["mean_power_w"] == pytest.approx(250 / summary["duration_s"])
    assert summary["clock_limits"] == ["power cap"], "what only describes an idle GPU is no limit"
    assert (summary["device"], summary["name"], summary["uuid"]) == ("cuda:0", "Fake GPU", "GPU-aaaa")
    assert set(summary["unavailable"]) == {"process_memory_bytes"}, "torch has not used a GPU"
    assert json.loads(json.dumps(summary)) == summary
    assert nvml.users == 0, "NVML is given back"


def test_it_samples_in_between(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    third = threading.Event()
    monkeypatch.setattr(gpu_monitor.GPUMonitor, "_sample", _then(third, GPUMonitor._sample, at=3))
    with GPUMonitor(interval=0.001) as monitor:
        assert third.wait(60)
        assert monitor.get_summary()["samples"] >= 2, "it may be read while it runs"
    assert monitor.get_summary()["samples"] >= 4
    times = [sample.time_s for sample in monitor.samples]
    assert times == sorted(times)


def _then(event: threading.Event, sample: Any, at: int) -> Any:
    def sampled(self: GPUMonitor) -> None:
        sample(self)
        if len(self.samples) >= at:
            event.set()

    return sampled


def test_one_reading_that_fails_is_none_and_named(nvml: FakeNvml) -> None:
    nvml.broken["nvmlDeviceGetPowerUsage"] = refuse()
    nvml.broken["nvmlDeviceGetTotalEnergyConsumption"] = refuse()
    nvml.broken["nvmlDeviceGetCurrentClocksThrottleReasons"] = refuse()
    with GPUMonitor(interval=NEVER) as monitor:
        pass
    summary = monitor.get_summary()
    unknown = {"power_w", "energy_j", "clock_limits"}
    assert all(summary[name] is None for name in (*unknown, "mean_power_w"))
    assert unknown <= set(summary["unavailable"])
    assert summary["unavailable"]["power_w"] == "Not Supported (2 times)"
    assert all(summary[name] is not None for name in READINGS - unknown)


def test_the_thread_survives_an_error_in_between(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """An NVML error ended the thread, and the summary was zeros."""
    failed, recovered = threading.Event(), threading.Event()

    def fail() -> Any:
        failed.set()
        raise RuntimeError("GPU is lost")

    monkeypatch.setattr(gpu_monitor.GPUMonitor, "_sample", _then(recovered, GPUMonitor._sample, at=6))
    with GPUMonitor(interval=0.001) as monitor:
        nvml.broken["nvmlDeviceGetUtilizationRates"] = fail
        assert failed.wait(60)
        del nvml.broken["nvmlDeviceGetUtilizationRates"]
        assert recovered.wait(60)
    summary = monitor.get_summary()
    assert summary["gpu_utilization_percent"] == {"mean": 50.0, "min": 50, "max": 50}, "no zeros"
    assert "GPU is lost" in summary["unavailable"]["gpu_utilization_percent"]


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(binding.OVERRIDE, "/nowhere/libnvidia-ml.so.1")
    with GPUMonitor(interval=NEVER) as monitor:
        pass
    summary = monitor.get_summary()
    assert all(summary[name] is None for name in READINGS | {"energy_j", "name", "clock_limits"})
    assert summary["unavailable"]["NVML"] == "no NVIDIA driver (/nowhere/libnvidia-ml.so.1 was not found)"
    assert summary["samples"] == 2 and summary["duration_s"] >= 0


def test_without_a_driver(nvml: FakeNvml) -> None:
    nvml.broken["nvmlInit"] = refuse("NVML Shared Library Not Found")
    with GPUMonitor(interval=NEVER) as monitor:
        pass
    reason = monitor.get_summary()["unavailable"]["NVML"]
    assert reason == "NVML Shared Library Not Found" and nvml.users == 0


def test_torch_s_number_is_the_gpu_that_cuda_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's 0 is NVML's 1 here, as with CUDA_VISIBLE_DEVICES=1."""
    nvml = install(monkeypatch, FakeGpu("GPU-aaaa", "0000:01:00.0"), FakeGpu("GPU-bbbb", "0000:02:00.0"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(nvml_module, "_cuda_gpus", lambda: [{"uuid": "bbbb", "busLocation": "?"}])
    nvml.gpus[1].power_mw = 111_000
    with GPUMonitor(interval=NEVER, device=0) as monitor:
        pass
    assert monitor.get_summary()["uuid"] == "GPU-bbbb" and monitor.get_summary()["power_w"]["max"] == 111.0
    with GPUMonitor(interval=NEVER, device="cuda:1") as none:
        pass
    reason = none.get_summary()["unavailable"]["NVML"]
    assert reason == "CUDA sees 1 GPUs with CUDA_VISIBLE_DEVICES=1, none with the number 1"
    assert nvml.users == 0


def test_a_gpu_that_nvml_knows_only_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeGpu("GPU-aaaa", "0000:01:00.0"), FakeGpu("GPU-bbbb", "0000:02:00.0"))
    monkeypatch.setattr(nvml_module, "_cuda_gpus", lambda: [{"uuid": "?", "busLocation": "0000:02:00.0"}])
    assert nvml_module.gpu_of(0).uuid() == "GPU-bbbb"
    monkeypatch.setattr(nvml_module, "_cuda_gpus", lambda: [{"uuid": "?", "busLocation": "0000:03:00.0"}])
    with pytest.raises(binding.NvmlError, match=r"NVML does not know the GPU \? at 0000:03:00.0: Not Found"):
        nvml_module.gpu_of(0)


def test_another_process_asks_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA is not initialised here, so that the program can still fork workers that use it."""
    monkeypatch.setattr(gpu_facts, "gpus", lambda: pytest.fail("CUDA was initialised in this process"))
    if not torch.cuda.is_available():
        assert nvml_module._cuda_gpus() == []
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(binding.NvmlError, match="CUDA could not be asked for its GPUs"):
        nvml_module._cuda_gpus()


def test_memory_of_the_process_is_another_column(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_monitor, "allocator", lambda: SimpleNamespace(memory_allocated=lambda index: 123))
    with GPUMonitor(interval=NEVER) as monitor:
        pass
    summary = monitor.get_summary()
    assert (
        summary["process_memory_bytes"]["max"] == 123 and summary["gpu_memory_used_bytes"]["max"] == 4 << 30
    )


def test_an_exception_of_the_program_is_passed_on(nvml: FakeNvml) -> None:
    with pytest.raises(KeyError, match="mine"), GPUMonitor(interval=NEVER) as monitor:
        raise KeyError("mine")
    assert monitor.get_summary()["samples"] == 2 and nvml.users == 0


def test_a_thread_that_nvml_does_not_answer_is_left_behind(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_monitor, "_JOIN_TIMEOUT_S", 0.01)
    asked, answer = threading.Event(), threading.Event()

    def hang() -> Any:
        asked.set()
        answer.wait(60)
        raise RuntimeError("too late")

    with GPUMonitor(interval=0.001) as monitor:
        nvml.broken["nvmlDeviceGetPowerUsage"] = hang
        assert asked.wait(60)
    answer.set()
    assert monitor.get_summary()["unavailable"]["last sample"] == "NVML does not answer"
    for thread in threading.enumerate():
        if thread.name == "profiling-lab GPUMonitor":
            thread.join(60)


def test_no_thread_can_be_started(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with GPUMonitor() as monitor:
        pass
    summary = monitor.get_summary()
    assert (
        summary["samples"] == 2 and "can't start new thread" in summary["unavailable"]["samples in between"]
    )


def test_a_counter_that_began_anew_is_no_energy(nvml: FakeNvml) -> None:
    with GPUMonitor(interval=NEVER) as monitor:
        nvml.gpus[0].energy_mj = 5
    assert monitor.get_summary()["energy_j"] is None and monitor.get_summary()["mean_power_w"] is None


def test_it_can_run_again_and_before_it_ran(nvml: FakeNvml) -> None:
    monitor = GPUMonitor(interval=NEVER)
    assert monitor.get_summary()["samples"] == 0 and monitor.get_summary()["power_w"] is None
    for _ in range(2):
        with monitor:
            pass
        assert monitor.get_summary()["samples"] == 2
    monitor.stop()
    assert nvml.users == 0


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf")])
def test_a_bad_interval(interval: float) -> None:
    with pytest.raises(UsageError, match="interval must be a number of seconds above 0"):
        GPUMonitor(interval)


def test_a_bad_device() -> None:
    with pytest.raises(UsageError, match="must be the number of a GPU or cuda:N, not 'cpu'"):
        GPUMonitor(device="cpu")


@pytest.mark.gpu
def test_a_real_gpu() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    with GPUMonitor(interval=0.02) as monitor:
        for _ in range(50):
            x = torch.nn.functional.normalize(x @ x)
        torch.cuda.synchronize()
    summary = monitor.get_summary()
    assert summary["uuid"].removeprefix("GPU-") == str(torch.cuda.get_device_properties(0).uuid)
    assert summary["process_memory_bytes"]["max"] >= x.numel() * 4
    assert summary["power_w"]["max"] > 0 and summary["sm_clock_mhz"]["max"] > 0
    assert summary["gpu_memory_used_bytes"]["max"] >= summary["process_memory_bytes"]["max"]


@pytest.mark.multigpu
def test_the_second_of_two_gpus() -> None:
    with GPUMonitor(interval=NEVER, device=1) as monitor:
        pass
    wanted = str(torch.cuda.get_device_properties(1).uuid)
    assert monitor.get_summary()["uuid"].removeprefix("GPU-") == wanted
