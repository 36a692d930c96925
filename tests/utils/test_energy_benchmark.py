# SPDX-License-Identifier: Apache-2.0
"""Joules of blocks and functions, with a stand-in for NVML and for the clock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from utils.fake_nvml import FakeGpu, FakeNvml, install, refuse

from profiling_lab.errors import LabError, UsageError
from profiling_lab.utils import energy_benchmark
from profiling_lab.utils.energy_benchmark import EnergyBenchmark, measure_energy


class Clock:
    """Passes only during sleep and calls. The GPU uses 300 W in a call, 100 W else; its counter has 50 ms."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.now_s, self._joules, self._gpu = 0.0, 1000.0, gpu

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float, watts: float = 100.0) -> None:
        steps = max(round(seconds / 0.001), 1)
        for _ in range(steps):
            before = int(self.now_s / 0.05)
            self.now_s += seconds / steps
            self._joules += watts * seconds / steps
            if int(self.now_s / 0.05) > before:
                self._gpu.energy_mj = int(self._joules * 1000)

    def call(self) -> None:
        self.sleep(0.02, 300.0)


@pytest.fixture
def clock(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(nvml.gpus[0])
    monkeypatch.setattr(energy_benchmark, "time", made)
    return made


def test_a_block(clock: Clock, nvml: FakeNvml) -> None:
    with measure_energy() as used:
        for _ in range(100):
            clock.call()
    assert abs(used.joules - 600) <= used.error_j
    assert used.error_j == pytest.approx(used.mean_w * 0.05, rel=0.1)
    assert 2.0 <= used.seconds <= 2.06 and nvml.users == 0


def test_a_function_is_repeated_until_the_counter_knows_it(clock: Clock, tmp_path: Path) -> None:
    bench = EnergyBenchmark(least_s=4.0)
    result = bench.measure("call", clock.call, flops=3e12)
    assert result.calls >= 200 and abs(result.joules - 6.0) <= result.error_j
    assert result.idle_w == pytest.approx(100, rel=0.1)
    assert result.above_idle_j == pytest.approx(4.0, rel=0.05)
    assert result.tflops_per_w == pytest.approx(0.5, rel=0.03)
    assert bench.measure("other", clock.call).tflops_per_w is None
    bench.save_results(tmp_path / "out.json")
    assert [one["name"] for one in json.loads((tmp_path / "out.json").read_text())] == ["call", "other"]


def test_what_it_prints(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    bench = EnergyBenchmark(least_s=1.0)
    bench.measure("call", clock.call)
    bench.print_results()
    head, row = capsys.readouterr().out.splitlines()
    assert "J per call" in head and row.startswith("call") and row.endswith("-")


def test_a_counter_that_stands_still_or_is_not_there(clock: Clock, nvml: FakeNvml) -> None:
    with pytest.raises(LabError, match="cannot be read: Not Supported"):
        nvml.broken["nvmlDeviceGetTotalEnergyConsumption"] = refuse()
        with measure_energy():
            pytest.fail("the block ran")
    nvml.broken["nvmlDeviceGetTotalEnergyConsumption"] = lambda: 7
    with pytest.raises(LabError, match="it did not change within 5 s"), measure_energy():
        pytest.fail("the block ran")
    assert nvml.users == 0


def test_what_the_block_raises_is_passed_on(clock: Clock, nvml: FakeNvml) -> None:
    with pytest.raises(KeyError, match="mine"), measure_energy():
        raise KeyError("mine")
    assert nvml.users == 0


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeGpu("GPU-aaaa", "0000:01:00.0"))
    fake.broken["nvmlInit"] = refuse("no NVIDIA driver")
    with (
        pytest.raises(LabError, match="the energy counter cannot be read: no NVIDIA driver"),
        measure_energy(),
    ):
        pytest.fail("the block ran")


def test_arguments() -> None:
    with pytest.raises(UsageError, match="least_s must be a number of seconds above 0, not 0"):
        EnergyBenchmark(least_s=0)
    with (
        pytest.raises(UsageError, match="measure_energy: device must be the number of a GPU or cuda:N"),
        measure_energy("cpu"),
    ):
        pytest.fail("the block ran")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_as_a_script_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert energy_benchmark.main() == 3
    assert "needs a GPU" in capsys.readouterr().err


@pytest.mark.gpu
def test_a_real_gpu() -> None:
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    result = EnergyBenchmark(least_s=2.0).measure("mm", lambda: torch.mm(x, x), 2.0 * 4096**3)
    assert result.mean_w > result.idle_w > 0 and result.error_j < 0.2 * result.joules
