# SPDX-License-Identifier: Apache-2.0
"""profiling-lab peaks"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiling_lab.analysis.roofline import peaks as rates
from profiling_lab.analysis.roofline.peaks import Peaks
from profiling_lab.cli import main
from profiling_lab.measure import peaks as measured
from profiling_lab.measure.device import Machine

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU whose measurement takes no time."""
    found = {"memory_bytes_per_s": 4.2e12, "bfloat16_flops_per_s": 7.5e14, "launch_ns": 1800.0}
    monkeypatch.setattr(measured, "gpu_of", lambda device: "NVIDIA H200")
    monkeypatch.setattr(measured, "measure", lambda device: dict(found))
    here = Machine("NVIDIA H200", "580.1", "2.11", None, "13.0", None, "2026-11-23T12:00:00Z")
    monkeypatch.setattr("profiling_lab.measure.device.machine", lambda device: here)


def test_measured_once_and_kept(gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peaks", "-o", str(tmp_path / "h200.json")]) == 0
    out = capsys.readouterr().out
    assert "NVIDIA H200, driver 580.1: measured 2026-11-23" in out
    assert "4,200.0 GB/s" in out and "750 TFLOP/s" in out and "1.800 µs" in out
    kept = rates.load(rates.cache_file("NVIDIA H200"))
    assert kept == rates.load(tmp_path / "h200.json")
    assert kept.flops_per_s == {"bfloat16": 7.5e14} and kept.others == {"launch_ns": 1800.0}
    assert kept.is_measured and rates.peaks_of("NVIDIA H200") == kept


def test_a_file_is_not_replaced_by_accident(
    gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "h200.json").write_text("mine")
    assert main(["peaks", "-o", str(tmp_path / "h200.json")]) == 2
    assert "exists already" in capsys.readouterr().err and (tmp_path / "h200.json").read_text() == "mine"
    assert main(["peaks", "-o", str(tmp_path / "h200.json"), "--overwrite"]) == 0
    assert rates.load(tmp_path / "h200.json").gpu == "NVIDIA H200"


def test_cached(gpu: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["peaks", "--cached"]) == 4
    assert "cannot read" in capsys.readouterr().err
    rates.save(Peaks("NVIDIA H200", "measured before", 1e12, {}), rates.cache_file("NVIDIA H200"))
    monkeypatch.setattr(measured, "measure", lambda device: pytest.fail("it measured"))
    assert main(["peaks", "--cached", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["trace"]["source"] == "measured before"
    assert data["data"]["rows"] == [{"name": "memory_bytes_per_s", "value": 1e12}]


def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main(["peaks"]) == 2
    assert "expected a CUDA device below 0, got 0" in capsys.readouterr().err


@pytest.mark.gpu
def test_what_a_gpu_reaches() -> None:
    found = measured.measure()
    assert {"memory_bytes_per_s", "bfloat16_flops_per_s", "float32_flops_per_s", "launch_ns"} <= set(found)
    assert found["bfloat16_flops_per_s"] > found["float32_flops_per_s"]
    assert found["memory_bytes_per_s"] > 1e10 and 100 < found["launch_ns"] < 1e6
