# SPDX-License-Identifier: Apache-2.0
"""benchmark_fn and quick_benchmark: counts, modes, and a model that is left as it was."""

from __future__ import annotations

import time

import pytest
import torch

from profiling_lab.errors import UsageError
from profiling_lab.measure.calls import synchronizer
from profiling_lab.utils import benchmark_fn, quick_benchmark


@pytest.fixture
def ns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    return now


@pytest.mark.parametrize("mode", ["latency", "throughput"])
def test_mean_seconds_after_the_warm_up(ns: list[int], mode: str) -> None:
    calls = []

    def fn(x: int, y: int) -> None:
        calls.append((x, y))
        ns[0] += 10**9 if len(calls) <= 5 else 2_000_000 * (len(calls) % 2 + 1)

    assert benchmark_fn(fn, (1, 2), mode=mode) == pytest.approx(3e-3)  # type: ignore[arg-type]
    assert calls == [(1, 2)] * 105, "5 to warm up, 100 runs"


def test_bad_arguments_of_benchmark_fn() -> None:
    with pytest.raises(UsageError, match="benchmark_fn: expected 0 or more warm-up calls and at least 1 run"):
        benchmark_fn(len, ([],), num_runs=0)
    with pytest.raises(UsageError, match="mode must be latency or throughput, not 'best'"):
        benchmark_fn(len, ([],), mode="best")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="device must be cpu, cuda or cuda:N, not 'tpu'"):
        benchmark_fn(len, ([],), device="tpu")


def test_the_right_gpu_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    synchronizer("cuda:1")()
    synchronizer("cpu")()
    assert waited == ["cuda:1"]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = torch.nn.Linear(4, 2), torch.nn.Dropout()
        self.seen: list[tuple[bool, bool, torch.dtype]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append((self.training, torch.is_grad_enabled(), x.dtype))
        return self.dropout(self.linear(x))


def test_a_model_on_the_cpu_is_timed_on_the_cpu_in_eval_mode() -> None:
    model = Model().double()
    model.dropout.eval()
    result = quick_benchmark(model, (8, 4), num_iterations=3, warmup=2)
    assert model.seen == [(False, False, torch.float64)] * (2 + 3 + 3)
    assert model.training and not model.dropout.training, "every part has its mode again"
    assert (result.name, result.device, result.iterations, result.warmup) == ("Model", "cpu", 3, 2)
    assert result.gpu_span is None and result.peak_memory_bytes is None
    assert result.throughput_ns is not None and result.samples_per_call == 8
    assert result.samples_per_s == pytest.approx(8 * (result.calls_per_s or 0))
    assert "samples/s" in str(result)


def test_inputs_that_are_not_float() -> None:
    result = quick_benchmark(
        torch.nn.Embedding(10, 3), inputs=(torch.zeros(5, dtype=torch.long),), num_iterations=1
    )
    assert result.samples_per_call == 5


def test_the_mode_is_restored_if_the_model_fails() -> None:
    model = Model()
    with pytest.raises(RuntimeError):
        quick_benchmark(model, (8, 5), num_iterations=1)
    assert model.training


def test_bad_arguments_of_quick_benchmark() -> None:
    with pytest.raises(UsageError, match="either input_shape or inputs, got both or none"):
        quick_benchmark(Model())
    with pytest.raises(UsageError, match="at least 1 run, got 10 and 0"):
        quick_benchmark(Model(), (1, 4), 0)


@pytest.mark.gpu
def test_a_model_on_the_gpu() -> None:
    model = torch.nn.Linear(1024, 1024, device="cuda", dtype=torch.bfloat16)
    result = quick_benchmark(model, (4096, 1024), num_iterations=5)
    assert result.device == "cuda:0" and result.gpu_span is not None
    assert result.peak_memory_bytes is not None and result.peak_memory_bytes >= 2 * 4096 * 1024 * 2
    assert result.throughput_ns is not None and result.throughput_ns <= 2 * result.wall.median_ns
    assert benchmark_fn(model, (torch.ones(8, 1024, device="cuda", dtype=torch.bfloat16),), num_runs=3) > 0
