# SPDX-License-Identifier: Apache-2.0
"""The CUDA programs of E05 to E08: they compile, and what is planted is there after compilation."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from profiling_lab.exercises import find
from profiling_lab.exercises.e08_optimization_loop.grade import assembled, rounds_of

FOLDERS = {slug: find(slug).folder for slug in ("memory-metrics", "compute-metrics", "roofline-practice")}
LOOP = find("optimization-loop").folder
SOURCES = sorted(path for folder in (*FOLDERS.values(), LOOP) for path in folder.rglob("*.cu"))
COMPLETE = [path for path in SOURCES if path.name != "rounds.cu"]

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")


@cache
def compiled(source: Path) -> dict[str, str]:
    """What ptxas says of each kernel, by its name."""
    command = ["nvcc", "-O3", "-std=c++17", "-arch=sm_90", "-cubin", "-Xptxas", "-v", "-o", "/dev/null"]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    parts = re.split(r"Compiling entry function '(\w+)'", done.stderr)
    return {plain(name): text for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def plain(mangled: str) -> str:
    found = re.match(r"_Z(\d+)", mangled)
    assert found is not None, mangled
    return mangled[found.end() : found.end() + int(found[1])]


def registers(text: str) -> int:
    found = re.search(r"Used (\d+) registers", text)
    assert found is not None, text
    return int(found[1])


def shared_bytes(text: str) -> int:
    found = re.search(r"(\d+) bytes smem", text)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("source", COMPLETE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_program_compiles_without_spills(source: Path) -> None:
    kernels = compiled(source)
    assert kernels
    for name, text in kernels.items():
        assert " 0 bytes spill stores, 0 bytes spill loads" in text, name


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_every_round_compiles(number: int, tmp_path: Path) -> None:
    starter = (LOOP / "optimization_loop.cu").read_text()
    _, text = rounds_of((LOOP / "solutions" / "rounds.cu").read_text())[number]
    (tmp_path / "round.cu").write_text(assembled(starter, text))
    assert all(name.startswith("normalize_rows") for name in compiled(tmp_path / "round.cu"))


def test_the_last_round_is_the_solution() -> None:
    """Up to the layout of lines, which clang-format decides."""
    starter = (LOOP / "optimization_loop.cu").read_text()
    rounds = rounds_of((LOOP / "solutions" / "rounds.cu").read_text())
    last = assembled(starter, rounds[max(rounds)][1])
    solution = (LOOP / "solutions" / "optimization_loop.cu").read_text()
    assert "".join(last.split()) == "".join(solution.split())


def test_registers_limit_blend_alone() -> None:
    """65,536 registers of an SM are 128 for each of 512 threads: with more, a quarter of the warps fit."""
    kernels = compiled(FOLDERS["compute-metrics"] / "compute_metrics.cu")
    assert registers(kernels["blend"]) > 128
    assert all(registers(kernels[name]) <= 32 for name in ("smooth", "grow", "walk"))


def test_the_tile_of_the_solution_has_one_more_float_in_each_row() -> None:
    folder = FOLDERS["memory-metrics"]
    before, after = (
        compiled(folder / name) for name in ("memory_bandwidth.cu", "solutions/memory_bandwidth.cu")
    )
    assert shared_bytes(before["flip_tiles"]) == 32 * 32 * 4
    assert shared_bytes(after["flip_tiles"]) == 32 * 33 * 4


def instructions(source: Path, tmp_path: Path) -> dict[str, Counter[str]]:
    """The machine instructions of each kernel, counted by name."""
    if shutil.which("cuobjdump") is None:
        pytest.skip("cuobjdump is not on the PATH")
    cubin = tmp_path / "program.cubin"
    subprocess.run(["nvcc", "-O3", "-std=c++17", "-arch=sm_90", "-cubin", "-o", cubin, source], check=True)
    text = subprocess.run(["cuobjdump", "-sass", cubin], capture_output=True, text=True, check=True).stdout
    parts = re.split(r"Function : (\w+)", text)
    return {
        plain(name): Counter(re.findall(r"^\s+/\*\w+\*/\s+(?:@!?U?P\w+ )?([A-Z]\w*)", code, re.M))
        for name, code in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_arithmetic_is_not_optimised_away(tmp_path: Path) -> None:
    found = instructions(FOLDERS["roofline-practice"] / "roofline_kernels.cu", tmp_path)
    assert found["polynomial_16"]["FFMA"] == 16 and found["polynomial_512"]["FFMA"] == 512
    assert found["peak_fma"]["FFMA"] >= 64 and found["chain"]["FFMA"] >= 4
    assert found["peak_copy"]["FFMA"] == found["peak_copy"]["FADD"] == 0


def test_loops_of_different_length_stay_loops(tmp_path: Path) -> None:
    found = instructions(FOLDERS["compute-metrics"] / "compute_metrics.cu", tmp_path)
    assert found["grow"]["BRA"] >= 2 and found["grow"]["FFMA"] >= 2
    assert found["walk"]["SHFL"] >= 1 and found["blend"]["FFMA"] >= 128


@pytest.mark.parametrize("slug", FOLDERS)
def test_make_builds_for_the_gpu_that_is_there_or_is_named(slug: str, tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for path in FOLDERS[slug].iterdir():
        if path.suffix == ".cu" or path.name == "Makefile":
            shutil.copy(path, tmp_path)
    program = find(slug).program[0]
    for words, arch in (([], "-arch=(native|sm_90) "), (["ARCH=sm_80"], "-arch=sm_80 ")):
        told = subprocess.run(
            ["make", "-n", *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert re.search(arch, told.stdout) and f"-o {program.removeprefix('./')} " in told.stdout


@pytest.mark.slow
def test_the_line_of_the_lab_builds_the_program(tmp_path: Path) -> None:
    """make && ./memory_bandwidth: without a GPU it says so and ends with 1."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for name in ("memory_bandwidth.cu", "Makefile"):
        shutil.copy(FOLDERS["memory-metrics"] / name, tmp_path)
    subprocess.run(["make"], cwd=tmp_path, capture_output=True, check=True)
    done = subprocess.run(
        ["./memory_bandwidth", "1"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 or re.match(r"cuda\w+: .+", done.stderr), done.stderr
