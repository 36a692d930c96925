# SPDX-License-Identifier: Apache-2.0
"""The training program gives the same losses in each way of using several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_torch
from package_root import PACKAGE_ROOT

PROGRAMS = Path(__file__).resolve().parents[2] / "benchmarks" / "distributed"
WAYS = Path(__file__).with_name("train_model_ways.py")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}


def environment() -> dict[str, str]:
    return os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(PACKAGE_ROOT), str(PROGRAMS)])}


def run(*command: str, timeout_s: int = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def losses(folder: Path, *ways: str) -> dict[str, list[float]]:
    done = run(str(WAYS), str(folder), "single", *ways)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.split(": ") for line in done.stdout.splitlines() if ": " in line]
    return {way: [float(loss) for loss in found.split()] for way, found in rows if way in (*ways, "single")}


def test_every_way_of_torch_trains_as_one_process_does(tmp_path: Path) -> None:
    found = losses(tmp_path, "ddp", "fsdp2", "tensor")
    one = found.pop("single")
    assert len(one) == 4 and one[0] - one[-1] > 0.5, "it must learn, or wrong gradients would not show"
    assert set(found) == {"ddp", "fsdp2", "tensor"}
    for way, several in found.items():
        assert several == pytest.approx(one, abs=2e-5), way


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_zero_trains_as_one_process_does(tmp_path: Path) -> None:
    found = losses(tmp_path, "zero1", "zero2", "zero3")
    one = found.pop("single")
    assert set(found) == {"zero1", "zero2", "zero3"}
    for way, several in found.items():
        assert several == pytest.approx(one, abs=2e-5), way


def test_a_way_without_its_processes_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = warm_torch.run([str(PROGRAMS / "train_model.py"), "--way", "ddp"], tmp_path, environment())
    assert done.returncode == 2
    assert done.stderr.endswith("--way ddp does not fit 1 processes: torchrun starts several\n")
