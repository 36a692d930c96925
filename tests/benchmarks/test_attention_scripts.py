# SPDX-License-Identifier: Apache-2.0
"""The attention scripts from the command line, on the CPU: what they write, what they leave out, and why."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import REPO
from utils.fake_nvml import FakeGpu, install, refuse

from profiling_lab.measure import ResultsFile, machine

pytest.importorskip("torch")

SMALL = ("--device", "cpu", "--dtype", "float32", "--batch", "1", "--heads", "2", "--rounds", "2")
SMALL += ("--head-dim", "16", "--warmup", "0", "--baseline", "sdpa-math")


@dataclass(frozen=True, slots=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Script = Callable[..., Done]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Script:
    """script(name, *arguments): main() of a script of benchmarks/, in a folder that it may import from."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROFILING_LAB_GIT", "0123abc")

    def run(name: str, *arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        capfd.readouterr()
        code = import_module(name).main()
        return Done(code, *capfd.readouterr())

    return run


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_benchmark_times_tells_who_is_absent_and_resumes(tmp_path: Path, script: Script) -> None:
    out = tmp_path / "results.jsonl"
    who = ("--impl", "flash,sdpa-math,naive,liger-kernel,mine,broken", "--peer", "mine=my_peer:zero")
    who += ("--peer", "broken=no_such_module:f", "--output", str(out))
    (tmp_path / "my_peer.py").write_text(
        "def zero(q, k, v, causal):\n    return (q + k.mean() + v.mean()) * 0\n"
    )

    def run(*more: str) -> Done:
        return script("benchmark_attention", *SMALL, *who, *more)

    first = run("--seq-len", "20", "--causal", "no")
    assert first.returncode == 0, first.stderr
    rows = lines(out)
    rates = {(r["provider"], r["case"]["direction"]) for r in rows if r["metric"] == "rate"}
    both = {(name, direction) for name in ("flash", "sdpa-math") for direction in ("forward", "backward")}
    assert rates == both | {("naive", "forward")}, "the ladder's backward is not its own, so it is not timed"
    reasons = {r["provider"]: r["case"]["reason"] for r in rows if r["metric"] == "available"}
    assert set(reasons) == {"liger-kernel", "mine", "broken"}
    assert "wrong: relative error 1" in reasons["mine"] and "no_such_module" in reasons["broken"]
    assert "flash backward: " in first.stderr and "x sdpa-math in the geometric mean of 1" in first.stderr

    second = run("--seq-len", "20,30", "--causal", "no", "--resume")
    assert second.returncode == 0 and "2 of 4 problems were measured before" in second.stderr
    after = lines(out)
    assert after[: len(rows)] == rows and {r["run"] for r in after} == {rows[0]["run"]}
    assert {r["case"]["rows"] for r in after[len(rows) :] if r["metric"] == "rate"} == {30}

    third = run("--seq-len", "40,50", "--resume", "--seconds", "1e-9")
    assert third.returncode == 1 and "problems are left; --resume goes on" in third.stderr


def test_clocks_are_read_after_each_round_and_their_absence_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))
    from attention_cases import problem
    from benchmark_attention import Task, clock_reader, report

    fake = install(monkeypatch, FakeGpu("GPU-1", "0000:01:00.0"))
    with clock_reader("cuda") as read:
        clocks = [*read(), *read()]
        fake.broken["nvmlDeviceGetClockInfo"] = refuse()
        assert clocks == [1980.0, 1980.0] and read() == []
    assert fake.users == 0
    results = ResultsFile(None, machine("cpu"), samples=True)
    report(Task(problem("forward", 64, 16, False, 1, 1, 1, "float32")), {}, results, "cuda", clocks)
    (line,) = results.lines
    assert (line["metric"], line["value"], line["samples_mhz"]) == ("sm_clock", 1980.0, clocks)
    fake.broken["nvmlInit"] = refuse("no driver")
    with clock_reader("cuda") as read:
        assert read() == [] and "without clocks: no driver" in capfd.readouterr().err


def test_parts_of_a_suite_add_up_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))
    from attention_cases import SUITES
    from benchmark_attention import chosen

    whole = list(SUITES["grid"].problems)
    assert len(whole) == 72 and len({p.label for p in whole}) == 72
    parts = [chosen(argparse.Namespace(suite=["grid"], part=(i, 5))) for i in range(1, 6)]
    assert sorted(task.problem.label for part in parts for task in part) == sorted(p.label for p in whole)
    for suite in SUITES.values():
        assert len({p.label for p in suite.problems}) == len(suite.problems), suite.about


def test_plots_of_an_array(tmp_path: Path, script: Script) -> None:
    run = script(
        "benchmark_attention", *SMALL, "--seq-lengths", "16,32", "--impl", "flash,sdpa-math",
        "--output", "benchmark_results.json",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    times = [row for row in json.loads(Path("benchmark_results.json").read_text()) if row["metric"] == "time"]
    assert times and all(statistics.median(row["samples_ns"]) == row["value"] for row in times)
    drawn = script(
        "visualize_results", "--input", "benchmark_results.json", "--output-dir", "plots/",
        "--baseline", "sdpa-math",
    )  # fmt: skip
    assert drawn.returncode == 0, drawn.stderr
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {
        f"{n}.svg" for n in ("rate_forward", "rate_backward", "speedup_backward", "summary", "roofline")
    } <= names
    for path in (tmp_path / "plots").glob("*.svg"):
        root = ElementTree.fromstring(path.read_text())
        assert "flash" in "".join(root.itertext()) and "nan" not in path.read_text().lower()
    (tmp_path / "empty.json").write_text("[]")
    none = script("visualize_results", "--input", "empty.json")
    assert none.returncode == 3 and "has no rates of attention" in none.stderr
    (tmp_path / "other.json").write_text('[{"name": "x"}]')
    for name in ("other.json", "missing.json"):
        other = script("visualize_results", "--input", name)
        assert other.returncode == 4 and "is no result of benchmark_attention.py" in other.stderr


def test_profile_writes_a_trace_with_its_ranges(tmp_path: Path, script: Script) -> None:
    shape = ("--device", "cpu", "--seq-len", "32", "--batch", "1", "--heads", "1", "--steps", "2")
    done = script("profile_kernels", "--impl", "tiled", "--backward", "--torch-profiler", "on", *shape)
    assert done.returncode == 0, done.stderr
    assert "profiling_lab::ladder_attention" in done.stdout
    events = json.loads((tmp_path / "trace_tiled.json").read_text())["traceEvents"]
    names = [event.get("name") for event in events]
    assert names.count("tiled step 0") == names.count("tiled step 1") == 1
    assert names.count("forward") == names.count("backward") == 2

    unknown = script("profile_kernels", "--impl", "flash-sm80", *shape)
    assert unknown.returncode == 2 and "PROFILING_LAB_ATTENTION_PATH=sm80" in unknown.stderr
    listed = script("profile_kernels", "--list")
    assert {"naive", "tiled", "flash", "sdpa-flash", "sdpa-cudnn"} <= set(listed.stdout.split())


def test_profile_leaves_the_gpu_to_the_tool_that_watches(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "profiling_lab._recorder", raising=False)
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    done = script("profile_kernels", "--device", "cpu", "--seq-len", "16")
    assert done.returncode == 0 and "3 steps ran without torch.profiler" in done.stderr
    assert "Nsight Systems" in done.stderr and not list(tmp_path.iterdir())
