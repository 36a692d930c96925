# SPDX-License-Identifier: Apache-2.0
"""E01's twin in CUDA C++: results are judged on new plates, with libraries of plain C in place of CUDA."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from profiling_lab.exercises import find
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e01_timeline_basics import twin
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck, Need

EXERCISE = find("timeline-basics")
NVCC = shutil.which("nvcc")
SIZES = (33, 64)
RIGHT = """
#include <math.h>
#include <stdlib.h>
#include <string.h>
int simulate(float *plate, int n, int rounds, float *changes) {
    size_t bytes = sizeof(float) * n * n;
    float *old = malloc(bytes);
    for (int round = 0; round < rounds; ++round) {
        memcpy(old, plate, bytes);
        changes[round] = 0;
        for (int y = 1; y < n - 1; ++y)
            for (int x = 1; x < n - 1; ++x) {
                size_t at = (size_t)y * n + x;
                plate[at] = 0.25f * (old[at - 1] + old[at + 1] + old[at - n] + old[at + n]);
                changes[round] = fmaxf(changes[round], fabsf(plate[at] - old[at]));
            }
    }
    free(old);
    return 0;
}
"""
REMEMBERED = """
#include <string.h>
int compute(float *, int, int, float *);
static float plates[64 * 64], kept[64];
static int known;
int simulate(float *plate, int n, int rounds, float *changes) {
    if (known != n) {
        compute(plate, n, rounds, changes);
        memcpy(plates, plate, sizeof(float) * n * n);
        memcpy(kept, changes, sizeof(float) * rounds);
        known = n;
    }
    memcpy(plate, plates, sizeof(float) * n * n);
    memcpy(changes, kept, sizeof(float) * rounds);
    return 0;
}
"""

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler on the PATH")


def c_library(source: Path, library: Path) -> None:
    done = subprocess.run(
        ("cc", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-x", "c", "-o", library, source, "-lm"),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise twin.TwinError(f"does not compile: {done.stderr}")


def judged(text: str, folder: Path) -> dict[str, GradedCheck]:
    (folder / "baseline.cu").write_text(RIGHT)
    (folder / "improved.cu").write_text(text)
    found = twin.judge(folder / "baseline.cu", folder / "improved.cu", c_library, SIZES)
    return {check.name: check for check in found}


@needs_cc
def test_the_right_result_passes_and_the_grader_takes_the_time(tmp_path: Path) -> None:
    checks = judged(RIGHT, tmp_path)
    assert checks["cuda result"].status is CheckStatus.PASSED, checks
    assert "ms per round before" in checks["cuda speed"].message


@needs_cc
@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param("round < rounds", "round < rounds - 1", "differs", id="one round less"),
        pytest.param("round < rounds", "round < 0", "differs", id="deleted work"),
        pytest.param("changes[round] = fmaxf", "(void)fmaxf", "the changes", id="no changes"),
        pytest.param("y < n - 1", "y < n / 32 * 32 - 1", "differs", id="only whole blocks"),
        pytest.param("0.25f *", "0.2501f *", "the plate", id="another factor"),
        pytest.param("return 0;", "return 700;", "CUDA error 700", id="error code"),
        pytest.param("free(old);", "abort();", "crashed", id="crash"),
        pytest.param("int simulate", "int run", "simulate", id="no simulate"),
        pytest.param("int simulate", "int 1simulate", "does not compile", id="no program"),
    ],
)
def test_programs_that_compute_something_else_are_rejected(
    old: str, new: str, hint: str, tmp_path: Path
) -> None:
    assert old in RIGHT
    checks = judged(RIGHT.replace(old, new), tmp_path)
    assert checks["cuda result"].status is CheckStatus.FAILED
    assert hint in checks["cuda result"].message


@needs_cc
def test_a_plate_remembered_from_the_call_before_is_rejected(tmp_path: Path) -> None:
    checks = judged(RIGHT.replace("int simulate", "int compute") + REMEMBERED, tmp_path)
    assert checks["cuda result"].status is CheckStatus.FAILED


def test_the_reference_keeps_the_edge_and_knows_the_changes() -> None:
    plate = np.zeros((3, 3), dtype=np.float32)
    plate[0, :] = 4.0
    after, changes = twin.reference(plate, 2)
    assert after[1, 1] == 1.0 and after[0, 1] == 4.0
    assert changes.tolist() == [1.0, 0.0]


def test_an_unchanged_twin_is_no_failure() -> None:
    found = twin.checks(EXERCISE.folder / "baseline.cu", EXERCISE.folder / "improved.cu")
    assert [check.status for check in found] == [CheckStatus.NOT_CHECKED]
    assert "unchanged" in found[0].message


def test_without_nvcc_or_a_gpu_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Need, "missing", lambda self: "none here" if self is Need.GPU else "")
    (tmp_path / "improved.cu").write_text(RIGHT)
    found = {check.name: check for check in EXERCISE.repair(tmp_path, Answers({}))}
    assert found["cuda result"].message == "none here"


@pytest.mark.skipif(NVCC is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("name", ["baseline.cu", "improved.cu", "solutions/improved.cu"])
def test_every_program_compiles_with_the_makefile(name: str, tmp_path: Path) -> None:
    source = EXERCISE.folder / name
    shutil.copy(source, tmp_path)
    shutil.copy(EXERCISE.folder / "Makefile", tmp_path)
    done = subprocess.run(["make", source.stem], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    library = tmp_path / "check.so"
    command = [
        "nvcc",
        "-O3",
        "-std=c++17",
        "-arch=sm_90",
        "-shared",
        "-Xcompiler",
        "-fPIC",
        "-o",
        library,
        source,
    ]
    subprocess.run(command, check=True)
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    assert " T simulate" in symbols


@pytest.mark.gpu
@pytest.mark.skipif(NVCC is None, reason="nvcc is not on the PATH")
def test_the_solution_reaches_its_goal(tmp_path: Path) -> None:
    shutil.copy(EXERCISE.folder / "solutions" / "improved.cu", tmp_path)
    found = twin.checks(EXERCISE.folder / "baseline.cu", tmp_path / "improved.cu")
    assert {check.status for check in found} == {CheckStatus.PASSED}, found
