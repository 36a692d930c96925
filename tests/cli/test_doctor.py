# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab doctor` tells the truth on every machine, and never fails because one thing is missing."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from package_root import PACKAGE_ROOT

from profiling_lab import doctor
from profiling_lab.doctor import machine, nvml, package, recording, tools
from profiling_lab.doctor.check import Health, HealthCheck, absent, broken, ok

H200 = nvml.InstalledGpu("NVIDIA H200", (9, 0), 143_771 << 20)
DRIVER = nvml.Driver("580.1", (13, 0), (H200,))
NAMES = (
    "python",
    "driver",
    "gpu",
    "peaks",
    "torch",
    "_analysis",
    "_recorder",
    "_ops",
    "cupti",
    "stacks",
    "autograd",
    "other profilers",
    "counters",
    "cpu samples",
    "nsys",
    "ncu",
    "nvcc",
)


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "profiling_lab", "doctor", *arguments],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), **environment},
        cwd="/",  # neither the source tree nor the packages: PYTHONPATH decides
        capture_output=True,
        text=True,
        timeout=600,
    )


def rows(*arguments: str, **environment: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    done = command("--format", "json", *arguments, **environment)
    answer = json.loads(done.stdout)
    assert answer["coverage"]["exit_code"] == done.returncode
    return {row["name"]: row for row in answer["data"]["rows"]}, answer


@pytest.fixture(scope="module")
def here() -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    return rows()


def test_every_check_is_there_once(here: tuple[dict[str, dict[str, Any]], dict[str, Any]]) -> None:
    found, answer = here
    assert tuple(found) == NAMES
    assert answer["schema"].startswith("profiling-lab/") and answer["command"] == "doctor"
    assert {row["status"] for row in found.values()} <= {"ok", "absent", "broken"}


def test_whatever_is_not_ok_comes_with_an_explanation(
    here: tuple[dict[str, dict[str, Any]], dict[str, Any]],
) -> None:
    for row in here[0].values():
        assert row["found"]
        if row["status"] == "broken":
            assert row["advice"]


def test_what_this_machine_has(here: tuple[dict[str, dict[str, Any]], dict[str, Any]]) -> None:
    found = here[0]
    assert found["python"]["found"].startswith(f"CPython {sys.version.split()[0]}")
    assert found["_recorder"]["status"] == found["_analysis"]["status"] == "ok"
    assert found["stacks"]["status"] == "ok" and "self-test passed" in found["stacks"]["found"]


def test_which_torch_this_machine_has(here: tuple[dict[str, dict[str, Any]], dict[str, Any]]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    found = here[0]
    assert torch.__version__ in found["torch"]["found"]
    assert found["autograd"]["status"] == "ok" and "self-test passed" in found["autograd"]["found"]


def test_table_puts_the_verdict_first_and_advice_below(
    here: tuple[dict[str, dict[str, Any]], dict[str, Any]],
) -> None:
    done = command()
    lines = done.stdout.splitlines()
    assert lines[0] == here[1]["coverage"]["verdict"]
    assert any(line.startswith("python") and " ok " in line for line in lines)
    advised = [row["advice"] for row in here[0].values() if row["advice"]]
    assert sum("-> " in line for line in lines) == len(advised)


def test_without_torch_and_tools(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE_ROOT}", "PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "profiling_lab", "doctor", "--format", "json"],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
    )
    found = {row["name"]: row for row in json.loads(done.stdout)["data"]["rows"]}
    assert found["torch"]["status"] == "absent" and "pip install torch" in found["torch"]["advice"]
    assert found["autograd"]["status"] == "absent"
    assert found["stacks"]["status"] == "ok"


def test_broken_torch_is_broken(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    done = command("--format", "json", PYTHONPATH=f"{tmp_path}{os.pathsep}{PACKAGE_ROOT}")
    found = {row["name"]: row for row in json.loads(done.stdout)["data"]["rows"]}
    assert done.returncode == 1
    assert found["torch"]["status"] == "broken" and "libcudart" in found["torch"]["found"]


def test_wrong_cupti_override_is_named() -> None:
    found, answer = rows(PROFILING_LAB_CUPTI="/nonexistent/libcupti.so")
    assert found["cupti"]["status"] == "broken" and "/nonexistent/libcupti.so" in found["cupti"]["found"]
    assert answer["coverage"]["exit_code"] == 1 and "cupti" in answer["coverage"]["verdict"]


def test_under_another_profiler() -> None:
    found, answer = rows(NSYS_PROFILING_SESSION_ID="1")
    assert found["other profilers"]["status"] == "broken" and "nsys" in found["other profilers"]["found"]
    assert answer["coverage"]["exit_code"] == 1


# With a driver that this machine may not have.


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (machine, package, recording):
        monkeypatch.setattr(module, "driver", lambda: DRIVER)


@pytest.mark.usefixtures("with_gpu")
def test_gpu_and_driver_are_named() -> None:
    assert machine.check_driver() == ok("driver", "580.1, supports CUDA up to 13.0")
    assert machine.check_gpus() == ok("gpu", "1 x NVIDIA H200, compute capability 9.0, 140 GiB")


@pytest.mark.usefixtures("with_gpu")
def test_measured_rates_are_shown_while_the_driver_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profiling_lab.analysis.roofline.peaks import Peaks, cache_file, save

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "profiling-lab peaks" in machine.check_peaks().advice
    rates = Peaks("NVIDIA H200", "measured today", 4.2e12, {"bfloat16": 7.5e14}, driver="580.1")
    save(rates, cache_file("NVIDIA H200"))
    text = "NVIDIA H200, measured today: memory 4,200.0 GB/s; bfloat16 750 TFLOP/s"
    assert machine.check_peaks() == ok("peaks", text)
    save(replace(rates, driver="570.0"), cache_file("NVIDIA H200"))
    assert "driver 570.0" in machine.check_peaks().found


def test_old_gpu_gets_advice_on_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    old = nvml.InstalledGpu("Tesla V100", (7, 0), 16 << 30)
    monkeypatch.setattr(machine, "driver", lambda: nvml.Driver("535.1", (12, 2), (old, old, H200)))
    check = machine.check_gpus()
    assert check.status is Health.OK
    assert check.found.startswith("2 x Tesla V100, compute capability 7.0, 16 GiB; 1 x NVIDIA H200")
    assert "Tesla V100" in check.advice


class FakeCuda:
    @staticmethod
    def is_available() -> bool:
        return False


class FakeTorch:
    __version__ = "2.11.0+cu130"
    cuda = FakeCuda

    class version:
        cuda: str | None = "13.0"


@pytest.mark.usefixtures("with_gpu")
def test_torch_that_cannot_use_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "torch_or_reason", lambda: FakeTorch)
    check = package.check_torch()
    assert check.status is Health.BROKEN and "cannot use the GPU" in check.found
    assert "580.1" in check.advice and "13.0" in check.advice
    monkeypatch.setattr(FakeTorch.version, "cuda", None)
    check = package.check_torch()
    assert check.status is Health.BROKEN and "a CPU build, but there is a GPU" in check.found


@pytest.mark.usefixtures("with_gpu")
def test_missing_cupti_matters_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording.libcupti, "candidates", lambda: ["/nonexistent/libcupti.so.13"])
    monkeypatch.delenv("PROFILING_LAB_CUPTI", raising=False)
    assert recording.check_cupti().status is Health.BROKEN
    monkeypatch.setattr(recording, "driver", lambda: "no NVIDIA driver")
    assert recording.check_cupti().status is Health.ABSENT


@pytest.mark.parametrize(
    ("number", "text"),
    [(18, "API 18 (CUDA 12)"), (28, "API 28 (CUDA 12)"), (130001, "13.0.1"), (130400, "13.4.0")],
)
def test_cupti_versions(number: int, text: str) -> None:
    assert recording._cupti_version(number) == text


@pytest.mark.parametrize(
    ("parameters", "administrator", "status", "words"),
    [
        pytest.param("RmProfilingAdminOnly: 0\n", False, Health.OK, "all users", id="open"),
        pytest.param("RmProfilingAdminOnly: 1\n", True, Health.OK, "this process is one", id="root"),
        pytest.param("RmProfilingAdminOnly: 1\n", False, Health.ABSENT, "ERR_NVGPUCTRPERM", id="closed"),
        pytest.param(None, False, Health.ABSENT, "cannot be read", id="no-driver"),
    ],
)
def test_counter_permission(
    parameters: str | None,
    administrator: bool,
    status: Health,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "params"
    if parameters is not None:
        file.write_text(f"ResmanDebugLevel: 4294967295\n{parameters}")
    monkeypatch.setattr(machine, "_may_administrate", lambda: administrator)
    check = machine.check_counters(file)
    assert check.status is status and words in check.found


@pytest.mark.parametrize(
    ("level", "administrator", "status", "words"),
    [
        pytest.param("2\n", False, Health.OK, "perf_event_paranoid is 2", id="open"),
        pytest.param("-1\n", False, Health.OK, "perf_event_paranoid is -1", id="wide-open"),
        pytest.param("4\n", True, Health.OK, "this process is an administrator", id="root"),
        pytest.param("4\n", False, Health.ABSENT, "perf_event_paranoid is 4", id="closed"),
        pytest.param("?\n", False, Health.ABSENT, "not a number", id="unreadable"),
        pytest.param(None, False, Health.ABSENT, "cannot be read", id="no-perf"),
    ],
)
def test_permission_for_cpu_samples(
    level: str | None,
    administrator: bool,
    status: Health,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "perf_event_paranoid"
    if level is not None:
        file.write_text(level)
    monkeypatch.setattr(machine, "_may_administrate", lambda: administrator)
    check = machine.check_cpu_samples(file)
    assert check.name == "cpu samples" and check.status is status and words in check.found
    assert (status is Health.OK) or "profiling-lab record" in check.advice


def make_tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_tools_are_found_with_their_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    make_tool(tmp_path, "nsys", "echo NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0")
    make_tool(tmp_path, "ncu", "echo 'cannot open display' >&2; exit 3")
    assert tools.check_nsys() == ok("nsys", f"2025.3.1.90 at {tmp_path}/nsys")
    check = tools.check_ncu()
    assert check.status is Health.ABSENT and "cannot open display" in check.found


# The verdict.


def checks(**changed: HealthCheck) -> tuple[HealthCheck, ...]:
    return tuple(
        changed.get(name, ok(name, "fine")) for name in ("gpu", "torch", "cupti", "autograd", "nsys")
    )


def test_verdict() -> None:
    assert doctor.summary(checks()) == doctor.HealthSummary("Everything needed for recording works.", 0)
    limited = doctor.summary(checks(autograd=absent("autograd", "torch is not installed", "install it")))
    assert limited.exit_code == 0 and "autograd" in limited.sentence
    assert doctor.summary(checks(gpu=absent("gpu", "none", ""))).exit_code == 0
    assert doctor.summary(checks(nsys=absent("nsys", "not found", ""))).exit_code == 0
    failed = doctor.summary(checks(cupti=broken("cupti", "gone", "repair it")))
    assert failed.exit_code == 1 and failed.sentence.startswith("Broken: cupti.")


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_something() -> HealthCheck:
        raise RuntimeError("odd machine")

    monkeypatch.setattr(doctor, "CHECKS", (machine.check_gpus, check_something))
    first, second = doctor.examine()
    assert first.name == "gpu"
    assert second.status is Health.BROKEN and "odd machine" in second.found


@pytest.mark.gpu
def test_on_a_gpu_everything_that_recording_needs_works() -> None:
    found, answer = rows()
    for name in ("driver", "gpu", "torch", "cupti", "stacks", "autograd"):
        assert found[name]["status"] == "ok", found[name]
    assert answer["coverage"] == {"verdict": "Everything needed for recording works.", "exit_code": 0}
