# SPDX-License-Identifier: Apache-2.0
"""TrainingProfiler and profile_training: times of a loop with a clock of the test, and what they prove."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from profiling_lab.errors import UsageError
from profiling_lab.measure import LoopClock, LoopStep
from profiling_lab.utils import devices, training
from profiling_lab.utils.easy_profiler import TrainingProfiler, profile_training
from profiling_lab.utils.training import verdict

MS = 1_000_000


class Machine:
    """A host and a GPU with clocks of the test. Events have the times at which the GPU reaches them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, gpu: bool) -> None:
        self.host_ms = self.gpu_ms = 0.0
        self.synchronised = 0
        monkeypatch.setattr(time, "perf_counter_ns", lambda: round(self.host_ms * MS))
        if not gpu:
            return
        machine = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: object) -> None:
                # The GPU reaches it after its work, but not before the host recorded it.
                self.ms = machine.gpu_ms = max(machine.gpu_ms, machine.host_ms)

            def query(self) -> bool:
                return self.ms <= machine.host_ms

            def synchronize(self) -> None:
                machine.host_ms = max(machine.host_ms, self.ms)
                machine.synchronised += 1

            def elapsed_time(self, other: Any) -> float:
                assert self.query() and other.query(), "torch raises for events that are not reached"
                return other.ms - self.ms  # type: ignore[no-any-return]

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 777)
        monkeypatch.setattr(devices, "chosen_device", lambda device=None: "cuda:0")
        monkeypatch.setattr(training, "chosen_device", lambda device=None: "cuda:0")

    def host(self, ms: float) -> None:
        self.host_ms += ms

    def launch(self, ms: float) -> None:
        """Queue work of `ms` on the GPU."""
        self.gpu_ms = max(self.gpu_ms, self.host_ms) + ms


def loader(machine: Machine, ms: float, batches: int) -> Iterator[list[int]]:
    for _ in range(batches):
        machine.host(ms)
        yield [0] * 16


def train(
    machine: Machine, *, load_ms: float, host_ms: float, gpu_ms: float, batches: int = 12
) -> dict[str, Any]:
    profiler = TrainingProfiler(warmup_steps=2)
    for batch in profiler.data(loader(machine, load_ms, batches)):
        with profiler.profile_step(batch_size=len(batch)):
            machine.launch(gpu_ms)
            machine.host(host_ms)
    return profiler.summary()


def test_data_loading_is_measured_apart_from_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = train(Machine(monkeypatch, gpu=False), load_ms=30, host_ms=10, gpu_ms=0)
    assert (summary["steps"], summary["warmup_steps"], summary["device"]) == (10, 2, "cpu")
    assert (summary["data_wait_ms"], summary["step_host_ms"], summary["between_steps_ms"]) == (
        30.0,
        10.0,
        30.0,
    )
    assert summary["data_share"] == 0.75 and summary["bottleneck"] == "data loading"
    assert summary["loop_s"] == pytest.approx(0.4)
    assert summary["steps_per_s"] == pytest.approx(25) and summary["samples_per_s"] == pytest.approx(400)
    assert summary["step_gpu_ms"] is None and summary["peak_memory_bytes"] is None
    assert any("num_workers" in line for line in summary["advice"])


def test_a_slow_step_on_the_cpu_is_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = train(Machine(monkeypatch, gpu=False), load_ms=0.1, host_ms=10, gpu_ms=0)
    assert summary["bottleneck"] == "step" and summary["advice"] == []


def test_a_gpu_that_waits_for_data(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, gpu=True)
    summary = train(machine, load_ms=30, host_ms=1, gpu_ms=10)
    assert summary["bottleneck"] == "data loading"
    assert summary["step_gpu_ms"] == pytest.approx(10) and summary["gpu_between_steps_ms"] == pytest.approx(
        21
    )
    assert summary["data_share"] == pytest.approx(21 / 31, abs=0.01)
    assert machine.synchronised == 1, "once in the summary, never in the loop"
    assert summary["peak_memory_bytes"] == 777


def test_loading_that_the_gpu_hides_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits for data 9 of 10 ms, but the GPU always has work."""
    summary = train(Machine(monkeypatch, gpu=True), load_ms=9, host_ms=1, gpu_ms=30)
    assert summary["data_wait_ms"] == 9.0
    assert summary["data_share"] == 0.0 and summary["advice"] == []
    assert summary["bottleneck"] == "GPU" and "ahead in 10 of 10 steps" in summary["why"]


def test_no_verdict_where_launches_and_gpu_look_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = train(Machine(monkeypatch, gpu=True), load_ms=0.1, host_ms=10, gpu_ms=9.9)
    assert summary["bottleneck"] is None and "profiling-lab record" in summary["why"]


def test_no_verdict_on_data_that_was_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, gpu=False)
    profiler = TrainingProfiler(warmup_steps=0)
    for _ in range(5):
        machine.host(30)
        with profiler.profile_step():
            machine.host(10)
    summary = profiler.summary()
    assert summary["bottleneck"] == "between steps" and summary["data_share"] is None
    assert summary["data_wait_ms"] is None and summary["samples_per_s"] is None
    assert summary["advice"] == ["the loader is not wrapped: iterate over profiler.data(loader)"]


@pytest.mark.parametrize("steps", [0, 2])
def test_no_verdict_of_few_steps(steps: int) -> None:
    found = verdict([LoopStep(1, 1, 1)] * steps, loads_data=True)
    assert found.bottleneck is None and found.why == f"{steps} steps were measured, expected at least 3"


def test_a_summary_of_nothing() -> None:
    summary = TrainingProfiler().summary()
    assert summary["steps"] == 0 and summary["loop_s"] is None and summary["steps_per_s"] is None


def test_a_step_that_raises_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, gpu=False)
    profiler = TrainingProfiler(warmup_steps=0)

    def step(fails: bool) -> None:
        with profiler.profile_step(batch_size=4):
            machine.host(10)
            if fails:
                raise KeyError("mine")

    step(False)
    with pytest.raises(KeyError, match="mine"):
        step(True)
    machine.host(1000)
    step(False), step(False)
    summary = profiler.summary()
    assert summary["steps"] == 3 and summary["step_host_ms"] == 10.0
    assert summary["loop_s"] == pytest.approx(0.03), "the way from the failure on is not part of the loop"


def test_an_error_of_the_loader_is_passed_on() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    profiler = TrainingProfiler()
    with pytest.raises(OSError, match="disk"):
        for _ in profiler.data(broken()):
            pass


def test_the_report_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = TrainingProfiler(warmup_steps=0)
    with profiler.profile_step():
        pass
    profiler.save_report(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["steps"] == 1
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        profiler.save_report(tmp_path / "none" / "report.json")


def test_bad_arguments() -> None:
    with pytest.raises(UsageError, match="warmup_steps must be 0 or more, not -1"):
        TrainingProfiler(-1)
    with pytest.raises(UsageError, match="device must be cpu, cuda or cuda:N, not 'xpu'"):
        TrainingProfiler(device="xpu")


def test_events_are_read_while_the_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, gpu=True)
    clock = LoopClock("cuda")
    for _ in range(100):
        clock.begin()
        machine.launch(1)
        machine.host(5)
        clock.end()
    assert len(clock._pending) <= 1 and clock.steps[50].gpu_span_ns == 5 * MS


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    return torch.optim.SGD([weight], lr=0.1)


def rows(path: Path, query: str) -> list[Any]:
    with sqlite3.connect(path) as file:
        return file.execute(query).fetchall()


def test_a_recording_of_some_steps_without_a_call(tmp_path: Path, optimizer: torch.optim.Optimizer) -> None:
    with profile_training(
        "job", tmp_path / "logs", num_warmup_steps=1, num_profile_steps=2, gpu=False
    ) as recorder:
        for _ in range(6):
            optimizer.step()
    assert recorder.summary is not None and recorder.summary.path == tmp_path / "logs" / "job.sqlite"
    assert recorder.windows == 1 and recorder.steps >= 3
    assert rows(recorder.summary.path, "SELECT count(*) FROM sqlite_master")
    with profile_training("job", tmp_path / "logs", gpu=False) as again:
        optimizer.step()
    assert again.path.name == "job-2.sqlite"


def test_an_exception_in_the_block_leaves_the_file(tmp_path: Path, optimizer: torch.optim.Optimizer) -> None:
    with pytest.raises(KeyError, match="mine"), profile_training(output_dir=tmp_path, gpu=False):
        optimizer.step()
        raise KeyError("mine")
    assert (tmp_path / "training.sqlite").is_file()


def test_training_goes_on_if_nothing_can_be_recorded(tmp_path: Path) -> None:
    ran = []
    with (
        profile_training("outer", tmp_path, gpu=False),
        pytest.warns(RuntimeWarning, match="nothing is recorded: a recording is already running"),
        profile_training("inner", tmp_path, gpu=False) as recorder,
    ):
        ran.append(1)
    assert ran == [1] and recorder.summary is None and not (tmp_path / "inner.sqlite").exists()


def test_what_is_not_recorded_is_said(tmp_path: Path) -> None:
    with (
        pytest.warns(RuntimeWarning, match="not recorded: trace_memory, record_shapes"),
        profile_training(output_dir=tmp_path, trace_memory=True, record_shapes=True, gpu=False),
    ):
        pass


def test_bad_arguments_of_profile_training(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="active must be at least 1"),
        profile_training(output_dir=tmp_path, num_profile_steps=0),
    ):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made"), profile_training(output_dir=tmp_path / "file"):
        pass


@pytest.mark.gpu
def test_a_loop_on_a_gpu_that_waits_for_data() -> None:
    x = torch.randn(64, 64, device="cuda")

    def slow() -> Iterator[torch.Tensor]:
        for _ in range(12):
            time.sleep(0.02)
            yield x

    profiler = TrainingProfiler(warmup_steps=2)
    for batch in profiler.data(slow()):
        with profiler.profile_step(batch_size=64):
            batch @ batch
    summary = profiler.summary()
    assert summary["device"] == "cuda:0" and summary["bottleneck"] == "data loading"
    assert summary["peak_memory_bytes"] > 0 and summary["step_gpu_ms"] is not None


@pytest.mark.gpu
def test_a_loop_on_a_gpu_that_is_the_limit() -> None:
    x = torch.randn(8192, 8192, device="cuda")
    profiler = TrainingProfiler(warmup_steps=2)
    for batch in profiler.data([x] * 12):
        with profiler.profile_step():
            for _ in range(4):
                batch @ batch
    assert profiler.summary()["bottleneck"] == "GPU"
