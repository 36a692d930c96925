# SPDX-License-Identifier: Apache-2.0
"""time_call: the three times of one call, on a host and a GPU whose clocks belong to the test."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from profiling_lab.measure import CallTime, step_time, time_call

MS = 1_000_000


class Gpu:
    """Work that is queued is finished when the host synchronises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host_ms = self.done_ms = 0.0
        self.devices: list[str] = []
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: object) -> None:
                gpu.done_ms = self.ms = max(gpu.done_ms, gpu.host_ms)

            def elapsed_time(self, other: Any) -> float:
                assert gpu.host_ms >= other.ms, "torch raises for events that are not reached"
                return other.ms - self.ms  # type: ignore[no-any-return]

        monkeypatch.setattr(time, "perf_counter_ns", lambda: round(self.host_ms * MS))
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", self.devices.append)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)

    def synchronize(self, device: str) -> None:
        self.devices.append(device)
        self.host_ms = max(self.host_ms, self.done_ms)

    def launch(self, host_ms: float, gpu_ms: float) -> str:
        self.done_ms = max(self.done_ms, self.host_ms) + gpu_ms
        self.host_ms += host_ms
        return "result"


def test_the_gpu_s_work_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    gpu.launch(1, 50)  # of the program, before: not part of the call
    assert time_call(lambda: gpu.launch(2, 10), device="cuda:1") == (
        "result",
        CallTime(host_ns=2 * MS, wall_ns=10 * MS, gpu_span_ns=10 * MS),
    )
    assert set(gpu.devices) == {"cuda:1"}, "the GPU that is measured, not the current one"


def test_on_the_cpu_there_is_no_gpu_span(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    assert time_call(lambda: gpu.launch(3, 0), device="cpu")[1] == CallTime(3 * MS, 3 * MS, None)
    assert gpu.devices == []


def test_steps_wait_for_their_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a second GPU was not waited for."""
    gpu = Gpu(monkeypatch)
    timing = step_time(lambda: gpu.launch(1, 4), steps_per_block=2, warmup=0, blocks=1, device="cuda:1")
    assert timing.samples_ns == (4 * MS,) and set(gpu.devices) == {"cuda:1"}


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    a = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    result, times = time_call(lambda: a @ a, device="cuda")
    torch.testing.assert_close(result, a @ a)
    assert times.gpu_span_ns is not None and times.gpu_span_ns > 0
    assert times.host_ns <= times.wall_ns


@pytest.mark.multigpu
def test_on_the_second_gpu() -> None:
    a = torch.randn(8192, 8192, device="cuda:1")
    a @ a  # cuBLAS starts
    _, times = time_call(lambda: a @ a, device="cuda:1")
    flops = 2 * 8192**3
    assert times.wall_ns > flops / 2e15 * 1e9, "faster than any GPU: it was not waited for"
