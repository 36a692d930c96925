# SPDX-License-Identifier: Apache-2.0
"""Launchers that are packages of their own: each rank has a file, and the launcher has none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from recorder.jobs import prepare

LAUNCHERS = {
    "accelerate": ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
                   "--mixed_precision", "no", "--dynamo_backend", "no", "--num_cpu_threads_per_process", "1"),
    "deepspeed": ("deepspeed", "--num_gpus", "2"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LAUNCHERS)
def test_each_rank_has_a_file(tmp_path: Path, fake_library: Path, name: str) -> None:
    job = prepare(tmp_path, fake_library)
    if shutil.which(name, path=job.environ()["PATH"]) is None:
        pytest.skip(f"{name} is not installed: pip install {name}")
    done = job.record("-o", "run.sqlite", *LAUNCHERS[name], "train.py", DS_ACCELERATOR="cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.files() == {"run.rank0.sqlite": 2, "run.rank1.sqlite": 3}, done.stderr
    assert f"recorded 2 processes of {name}: run.rank0.sqlite" in done.stderr
