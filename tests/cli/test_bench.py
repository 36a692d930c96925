# SPDX-License-Identifier: Apache-2.0
"""profiling-lab bench. The clock belongs to the test: functions take the time that their file says."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from utils.fake_nvml import FakeGpu, install, refuse

from profiling_lab.cli import main
from profiling_lab.measure import bench_files as measured
from profiling_lab.measure.timing import Timing
from profiling_lab.recording.energy import nvml as binding
from profiling_lab.recording.energy.nvml import Process, ProcessSample

US = 1_000

FUNCTIONS = """
from bench_clock import takes

def inputs():
    print("making inputs")
    return 2.0, 3.0

def f(x, y):
    print("working")
    takes(100)
    return x * y

def same(x, y):
    takes(100)
    return x * y

def slow(x, y):
    takes(130)
    return x * y

def fast(x, y):
    takes(50)
    return x * y + 1e-3

def nothing(x, y):
    takes(100)

def later(x, y, calls=[]):
    calls.append(1)
    if len(calls) > 5:
        raise RuntimeError("out of numbers")
    takes(100)
"""


@pytest.fixture(autouse=True)
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call takes up to 2 % more than it says, in a pattern that repeats after 7 calls."""
    module: Any = ModuleType("bench_clock")
    state = SimpleNamespace(ns=0, calls=0)

    def takes(us: float) -> None:
        state.calls += 1
        state.ns += round(us * US * (1 + 0.02 * (state.calls % 7) / 6))

    module.takes = takes
    monkeypatch.setitem(sys.modules, "bench_clock", module)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: state.ns)
    monkeypatch.setattr(time, "perf_counter", lambda: state.ns / 1e9)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(FUNCTIONS)


def rows(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert main(["bench", *arguments, "--format", "json"]) == code
    return json.loads(capsys.readouterr().out)


def test_faster_slower_and_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    data = rows(capsys, "a.py:f", "a.py:same", "a.py:slow", "a.py:fast")
    first, same, slow, fast = data["data"]["rows"]
    assert first["verdict"] == "" and first["ratio"] is None and 100_000 <= first["median_ns"] <= 102_000
    assert same["verdict"] == "no difference seen" and same["ratio_low"] <= 1 <= same["ratio_high"]
    assert slow["verdict"] == "slower" and slow["ratio"] == pytest.approx(1.3, abs=0.03)
    assert fast["verdict"] == "faster" and fast["ratio"] == pytest.approx(0.5, abs=0.02)
    assert fast["ratio_low"] <= fast["ratio"] <= fast["ratio_high"]
    assert all(
        len(row["samples_ns"]) == 30 and row["results"] == "not compared" for row in (same, slow, fast)
    )
    low, high = data["data"]["summary"]["first_over_itself"]
    assert 0.97 < low <= high < 1.03
    assert data["trace"] == {
        "device": "cpu", "mode": "host", "cold": False, "rounds": 30, "calls_per_sample": 2, "seed": 0,
        "jax_device": None,
    }  # fmt: skip


def test_a_function_against_itself_is_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "a.py:f", "a.py:f"]) == 0
    out, err = capsys.readouterr()
    assert "a.py:f (2)" in out and "no difference seen" in out
    assert "results are not compared: --rtol or --atol compares them" in out
    assert "working" in err and "working" not in out, "what the functions print is not the answer"


def test_the_interval_of_the_first_over_itself_is_what_chance_does() -> None:
    assert measured.verdict(1.01, 1.05, (0.99, 1.005)) == "no difference seen", "0.99 is 1.01 the other way"
    assert measured.verdict(1.02, 1.05, (0.99, 1.005)) == "slower"
    assert measured.verdict(0.90, 0.99, (0.99, 1.02)) == "no difference seen"
    assert measured.verdict(0.90, 0.97, (0.99, 1.02)) == "faster"
    assert measured.verdict(0.90, 1.10, (1.0, 1.0)) == "no difference seen"


def test_results(capsys: pytest.CaptureFixture[str]) -> None:
    same, fast = rows(capsys, "a.py:f", "a.py:same", "a.py:fast", "--rtol", "1e-2")["data"]["rows"][1:]
    assert same["results"] == fast["results"] == "agree"
    assert fast["largest_difference"] == pytest.approx(1e-3) and same["largest_difference"] == 0
    assert main(["bench", "a.py:f", "a.py:fast", "--atol", "1e-4"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("RESULTS DIFFER") and "numbers differ by more than the tolerance" in out


@pytest.mark.parametrize(
    ("function", "limit", "code"),
    [("slow", "20%", 1), ("slow", "40%", 0), ("slow", "30%", 3), ("fast", "0%", 0), ("same", "5%", 0)],
)
def test_a_limit(function: str, limit: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "a.py:f", f"a.py:{function}", "--fail-if-slower", limit]) == code
    out, err = capsys.readouterr()
    assert "of the first" in out, "the table is there whatever the exit code"
    assert ("is within the noise" in err) == (code == 3)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["a.py:f", "a.py:same", "--rounds", "5"], 3, "5 rounds are too few for an interval"),
        (["a.py:f", "--fail-if-slower", "5%"], 2, "needs a second function"),
        (["a.py:f", "a.py:same", "--fail-if-slower", "5"], 2, "expected a limit like 3%"),
        (["a.py:f", "a.py:same", "--fail-if-slower", "5ms"], 2, "expects a share such as 5%"),
        (["a.py:f", "a.py:nothing", "--rtol", "1"], 2, "a.py:nothing returned nothing, so --rtol and --atol"),
        (["a.py:f", "a.py:later"], 1, "a later call of a.py:later raised RuntimeError: out of numbers"),
        (["a.py:takes"], 3, "a.py:takes raised TypeError"),
        (["a.py:f", "a.py:takes"], 1, "a.py:takes raised TypeError"),
        (["b.py:f"], 4, "there is no file b.py"),
        (["a.py"], 2, "expected FILE:FUNCTION"),
        (["a.py:g"], 2, "a.py has no g; it has"),
        (["a.py:f", "--device", "tpu"], 2, "expected the device cpu, cuda or cuda:N, not 'tpu'"),
        (["a.py:f", "--device", "cpu:1"], 2, "expected the device cpu"),
        (["a.py:f", "--mode", "graph"], 2, "mode 'graph' times CUDA work"),
        (["quick.py:f"], 3, "too short for the clock: --calls N"),
    ],
)
def test_what_does_not_work(
    arguments: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quick.py").write_text(
        "from bench_clock import takes\ndef f(): takes(0)\ndef inputs(): return ()"
    )
    if "quick" in arguments[0]:
        arguments = [*arguments, "--calls", "1", "--warmup", "0"]
    assert main(["bench", *arguments]) == code
    assert says in capsys.readouterr().err


def test_a_function_that_raises_shows_its_own_lines(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "a.py:later"])
    err = capsys.readouterr().err
    assert 'raise RuntimeError("out of numbers")' in err and "measure/timing.py" not in err


def test_short_functions_are_called_in_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.py").write_text("from bench_clock import takes\ndef f(): takes(5)\ndef g(): takes(50)")
    data = rows(capsys, "b.py:f", "b.py:g")
    assert data["trace"]["calls_per_sample"] == 20, "0.1 ms of the shortest"
    assert data["data"]["rows"][0]["median_ns"] == pytest.approx(5_000, rel=0.03)
    assert rows(capsys, "b.py:f", "--calls", "3")["trace"]["calls_per_sample"] == 3


def test_saved_lines_are_those_of_the_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "a.py:f", "a.py:slow", "--save", "results.jsonl"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(line["provider"], line["metric"], line["unit"]) for line in lines] == [
        ("a.py:f", "time", "ns"), ("a.py:f", "time_iqr", "ns"), ("a.py:f", "time_samples", "samples"),
        ("a.py:slow", "time", "ns"), ("a.py:slow", "time_iqr", "ns"),
        ("a.py:slow", "time_samples", "samples"),
        ("a.py:slow", "ratio", "x"), ("a.py:slow", "ratio_low", "x"), ("a.py:slow", "ratio_high", "x"),
    ]  # fmt: skip
    assert len({line["run"] for line in lines}) == 1 and lines[0]["benchmark"] == "bench"
    assert main(["bench", "a.py:f", "--save", "results.jsonl"]) == 0
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 12, "they are appended"
    assert main(["bench", "a.py:f", "--save", "a.py"]) == 2
    assert "is not a file of results" in capsys.readouterr().err
    assert (tmp_path / "a.py").read_text() == FUNCTIONS
    assert main(["bench", "a.py:f", "--save", str(tmp_path)]) == 2
    assert lines[0]["git"] is None, "the commit is that of the measured file, which is in no repository"


def test_a_spread_that_a_quiet_machine_does_not_have_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(turns: dict[str, Any], **_: Any) -> dict[str, Timing]:
        return {name: Timing(name, (100, 150, 100, 160, 100, 170, 155, 100)) for name in turns}

    monkeypatch.setattr(measured, "compare", made)
    main(["bench", "a.py:f", "a.py:same"])
    out = " ".join(capsys.readouterr().out.split())
    assert "the middle half of the samples varies: a.py:f by" in out and "other work" in out


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[], FakeGpu]:
    """As if the functions worked on GPU 0, whose clock and power NVML says."""

    def make() -> FakeGpu:
        gpu = FakeGpu("GPU-aaaa", "0000:01:00.0")
        gpu.utilization = 0
        fake: Any = install(monkeypatch, gpu)
        fake.nvmlDeviceGetComputeRunningProcesses = lambda gpu: [Process(pid=7)]
        fake.nvmlDeviceGetProcessUtilization = lambda gpu, since: [ProcessSample(pid=7, sm_percent=40)]
        monkeypatch.setattr(measured, "_device_of", lambda values: "cuda:0")

        def made(turns: dict[str, Any], **asked: Any) -> dict[str, Timing]:
            assert (asked["device"], asked["mode"], asked["cold"]) == ("cuda:0", "events", True)
            gpu.sm_mhz, gpu.limits = 1200, 0x4
            return {name: Timing(name, (100, 101, 100, 101, 100, 101)) for name in turns}

        monkeypatch.setattr(measured, "compare", made)
        return gpu

    return make


def test_power_clocks_and_other_processes_are_watched(
    on_gpu: Callable[[], FakeGpu], capsys: pytest.CaptureFixture[str]
) -> None:
    on_gpu()
    assert main(["bench", "a.py:f", "a.py:same"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "GPU time of one call on cuda:0, L2 cold: 30 rounds in turns" in out
    assert "meanwhile: power 300 to 300 W, SM clock 1200 to 1980 MHz" in out
    assert "clocks limited by power cap" in out
    assert "the GPU is shared: meanwhile process 7 (40 %) used it too" in out
    summary = rows(capsys, "a.py:f", "a.py:same")["data"]["summary"]
    assert summary["gpu"]["sm_clock_mhz"]["min"] == 1200 and summary["sharing"]["is_shared"] is True
    assert summary["sharing"]["processes"] == {"7": 40}


def test_without_nvml_the_times_stand_and_the_rest_is_unknown(
    on_gpu: Callable[[], FakeGpu], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_gpu()
    monkeypatch.setattr(binding, "Nvml", refuse("no NVIDIA driver"))
    assert main(["bench", "a.py:f", "a.py:same"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "power and clocks are unknown: no NVIDIA driver" in out
    assert "whether other processes used the GPU is unknown" in out and "no difference seen" in out


def test_on_the_cpu_nothing_of_a_gpu_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    summary = rows(capsys, "a.py:f")["data"]["summary"]
    assert summary["gpu"] is None and summary["sharing"] is None


JAX = """
import jax

def inputs():
    return jax.numpy.ones((64, 64))

def f(x):
    return {"y": jax.numpy.tanh(x @ x)}

def nothing(x):
    f(x)
"""


def test_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    monkeypatch.undo()  # the real clock
    (tmp_path / "j.py").write_text(JAX)
    f, same = f"{tmp_path}/j.py:f", f"{tmp_path}/j.py:nothing"
    data = rows(capsys, f, f, "--rounds", "6", "--warmup", "0", "--rtol", "1e-6")
    assert data["data"]["rows"][1]["results"] == "agree" and data["trace"]["mode"] == "host"
    assert data["trace"]["calls_per_sample"] == 1, "calls in a row would overlap"
    assert main(["bench", f, same]) == 2
    assert "JAX's work is waited for by the arrays that a call returns" in capsys.readouterr().err


@pytest.mark.gpu
def test_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    file = tmp_path / "g.py"
    file.write_text(
        "import torch\ndef inputs(): return (torch.randn(2048, 2048, device='cuda'),)\n"
        "def f(x): return x @ x\ndef twice(x): return (x @ x, x @ x)[0]\n"
    )
    arguments = [f"{file}:f", f"{file}:twice", "--rtol", "1e-3", "--atol", "1e-3"]
    data = rows(capsys, *arguments)
    assert data["trace"]["device"] == "cuda:0" and data["trace"]["mode"] == "events" and data["trace"]["cold"]
    assert data["data"]["rows"][1]["verdict"] == "slower" and data["data"]["rows"][1]["results"] == "agree"
    for mode in ("graph", "stream", "host"):
        assert rows(capsys, *arguments, "--mode", mode, "--warm")["data"]["rows"][1]["ratio"] > 1.3
