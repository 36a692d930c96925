# SPDX-License-Identifier: Apache-2.0
"""profile_kernels.py on the GPU: bare, under nsys, under ncu, and under our own recorder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPO
from needs import needs
from package_root import PACKAGE_ROOT

from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.ranges.ranges import ranges
from profiling_lab.trace import Trace

pytestmark = pytest.mark.gpu

SCRIPT = str(REPO / "benchmarks" / "profile_kernels.py")
SMALL = ("--seq-len", "256", "--batch", "1", "--heads", "2", "--steps", "2", "--warmup", "1")
KERNEL = {"naive": "naive_", "tiled": "tiled_", "flash": "attention", "sdpa-flash": "flash", "sdpa-cudnn": ""}
"""What the name of a kernel holds, for every implementation that the script must know."""
TIME = "gpu__time_duration.sum"
ONE = ("--kernel-name", "regex:attention", "--launch-count", "1")


def profile(
    impl: str, cwd: Path, *more: str, under: tuple[str, ...] = (sys.executable,)
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*under, SCRIPT, "--impl", impl, *SMALL, *more],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done


@pytest.mark.parametrize("impl", KERNEL)
def test_bare_it_prints_a_table_and_writes_a_trace(impl: str, tmp_path: Path) -> None:
    done = profile(impl, tmp_path, "--backward")
    assert "CUDA total" in done.stdout and "trace_" in done.stdout
    events = json.loads((tmp_path / f"trace_{impl}.json").read_text())["traceEvents"]
    kernels = [event["name"] for event in events if event.get("cat") == "kernel"]
    assert any(KERNEL[impl] in name for name in kernels), kernels
    names = [event.get("name") for event in events if event.get("cat") == "user_annotation"]
    assert names.count(f"{impl} step 0") == names.count(f"{impl} step 1") == 1
    assert names.count("forward") == names.count("backward") == 2


def test_under_nsys_its_ranges_hold_its_kernels(tmp_path: Path) -> None:
    nsys, report, file = needs("nsys"), tmp_path / "run.nsys-rep", tmp_path / "run.sqlite"
    under = (nsys, "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-o", str(report))
    done = profile("tiled", tmp_path, under=(*under, sys.executable))
    assert "2 steps ran without torch.profiler" in done.stderr + done.stdout
    export = (nsys, "export", "--type=sqlite", "-o", str(file), str(report))
    subprocess.run(export, check=True, capture_output=True)
    with Trace.open(file) as trace:
        kernels = {row.name for row in top_kernels(trace).rows}
        found = {row.name: row for row in ranges(trace).rows}
    assert any("tiled_scores_kernel" in name for name in kernels), kernels
    assert {"warm-up", "forward", "tiled step 0", "tiled step 1"} <= set(found)
    assert found["tiled step 1"].operations >= 3, "two products and the softmax"


def test_under_ncu_one_kernel_of_one_range_is_measured(tmp_path: Path) -> None:
    ncu = (needs("ncu"), "--clock-control", "none", "--nvtx", "--nvtx-include", "flash step 0/forward/")
    done = profile("flash", tmp_path, under=(*ncu, *ONE, "--metrics", TIME, sys.executable))
    assert TIME in done.stdout and "attention" in done.stdout, done.stdout
    assert "Nsight Compute" in done.stderr + done.stdout and not list(tmp_path.glob("*.json"))


def test_under_our_recorder_the_kernels_have_lines(tmp_path: Path) -> None:
    under = (sys.executable, "-m", "profiling_lab", "record", "-o", "run.sqlite")
    assert "2 steps ran without torch.profiler" in profile("naive", tmp_path, under=under).stderr
    with Trace.open(tmp_path / "run.sqlite") as trace:
        rows = [row for row in top_kernels(trace).rows if "naive_" in row.name]
    files = {frame.file for row in rows for stack in row.stacks for frame in stack.frames}
    assert rows and any(file.endswith("attention_providers.py") for file in files), files
