# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels, compiled as C++ and run on the CPU: what needs no GPU to be proven."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
EMULATION = Path(__file__).with_name("emulation")
Outcome = Callable[..., "subprocess.CompletedProcess[str]"]
# Rounding the result alone gives 0.42 ulp in the mean square; the arithmetic before it may add little.
ALLOWED = {"bf16": 0.5 * 2**-7, "fp16": 0.5 * 2**-10, "fp32": 4 * 2**-23}


def cuda_headers() -> Path:
    """The folder with cuda_bf16.h: its conversions work on the host."""
    nvcc = shutil.which("nvcc", path="/usr/local/cuda/bin") or shutil.which("nvcc")
    for folder in (Path(nvcc).resolve().parents[1] / "include",) if nvcc else ():
        if (folder / "cuda_bf16.h").is_file():
            return folder
    pytest.skip("no CUDA toolkit: its headers define bf16 and fp16 for the kernels' source")


# What two warps do at once without harm: both warpgroups set the same rows behind the last key to 0.
SUPPRESSED = "race:clear_tail\n"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """outcome(op): of its kernels, compiled with the thread sanitizer and run once for all tests; with
    sanitizes=False without it, for those that would take minutes.
    """
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "suppressed").write_text(SUPPRESSED)

    @functools.cache
    def ran(op: str, sanitizes: bool = True) -> subprocess.CompletedProcess[str]:
        own = folder / ("races" if sanitizes else "plain")
        own.mkdir(exist_ok=True)
        program = built(op, own, *(["-fsanitize=thread"] if sanitizes else []))
        environment = {**os.environ, "TSAN_OPTIONS": f"suppressions={folder / 'suppressed'}"}
        return subprocess.run([program], capture_output=True, text=True, env=environment)

    return ran


def built(program: str, folder: Path, *options: str) -> Path:
    """A program of the emulation's folder, compiled."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    command = [
        compiler, "-std=c++20", "-O1", "-w", "-g1", *options, f"-I{EMULATION}", f"-I{REPO / 'csrc'}",
        f"-isystem{cuda_headers()}", str(EMULATION / f"{program}.cpp"), "-o", str(folder / program),
        "-pthread",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "cases"),
    [("layer_norm_gelu", 20), ("layer_norm_gelu_packed", 20), ("layer_norm_gelu_shifted", 14)],
)
def test_layer_norm_gelu_agrees_with_double(op: str, cases: int, outcome: Outcome) -> None:
    lines = outcome(op).stdout.splitlines()
    assert len(lines) == cases
    for line in lines:
        name, *errors, near_zero = line.split("\t")
        allowed = [ALLOWED[name[:4]]] * 4
        for what, error, bound in zip(("y", "dx", "dweight", "dbias"), errors, allowed, strict=True):
            assert float(error) < bound, f"{name}: {what} is off by {error}, allowed {bound:.2e}"
        if name.startswith("fp32"):  # where the mean's rounding shows: in one pass up to 1.4e-7
            assert float(near_zero) < 1.25 * 2**-24, f"{name}: a small y is off by {near_zero}"


@pytest.mark.slow
def test_decoding_agrees_with_double(outcome: Outcome) -> None:
    """P is rounded to 16 bits, too, so results are off by up to two roundings of the largest."""
    lines = outcome("attention_decode").stdout.splitlines()
    assert len(lines) == 16
    for line in lines:
        name, out, lse = line.split("\t")
        assert float(out) < 2 * ALLOWED[name[:4]], f"{name}: out is off by {out}"
        assert float(lse) < 2e-5, f"{name}: lse is off by {lse}"


@pytest.mark.slow
def test_a_cache_and_block_masks_agree_with_double(outcome: Outcome) -> None:
    """The Hopper forward with its warps, barriers, TMA and wgmma, and the decode kernel for what is short."""
    done = outcome("attention_cache", sanitizes=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 16, done.stderr[:3000]
    for line in lines:
        name, out, lse = line.split("\t")
        assert float(out) < 2 * ALLOWED[name[:4]], f"{name}: out is off by {out}"
        assert float(lse) < 2e-5, f"{name}: lse is off by {lse}"


@pytest.mark.slow
def test_the_wide_backward_agrees_with_double(outcome: Outcome) -> None:
    """P and dS are rounded to 16 bits, and dQ and dK are sums of terms that cancel."""
    done = outcome("attention_wide", sanitizes=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 6, done.stderr[:3000]
    for line in lines:
        name, *errors = line.split("\t")
        assert max(map(float, errors)) < 3 * ALLOWED["bf16"], f"{name}: dq, dk, dv are off by {errors}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "op",
    [
        "layer_norm_gelu",
        "layer_norm_gelu_packed",
        "layer_norm_gelu_shifted",
        "attention_decode",
        "attention_cache",
    ],
)
def test_kernels_have_no_races_in_shared_memory(op: str, outcome: Outcome) -> None:
    done = outcome(op)
    assert "WARNING: ThreadSanitizer" not in done.stderr, done.stderr[:3000]
    assert done.returncode == 0, done.stderr[:3000]


# Forward and backward. fp16 is as bf16 but where a step of it does not fit its block.
ONE_OF_EACH = [
    ("bf16", 31, "apart", "apart"),  # fewer than were measured
    ("bf16", 32, "packed", "packed"),
    ("bf16", 136, "packed", "packed"),
    ("bf16", 192, "packed", "packed"),  # fills 24 of 32 lanes
    ("bf16", 256, "apart", "apart"),  # divides evenly
    ("bf16", 257, "packed", "packed"),  # no whole vectors
    ("bf16", 384, "packed", "packed"),
    ("bf16", 520, "packed", "packed"),
    ("bf16", 640, "packed", "packed"),
    ("bf16", 768, "apart", "apart"),
    ("bf16", 1000, "apart", "apart"),
    ("bf16", 1023, "packed", "packed"),
    ("bf16", 1024, "apart", "apart"),
    ("bf16", 1025, "packed", "packed"),
    ("bf16", 1032, "packed", "packed"),
    ("bf16", 2046, "packed", "packed"),
    ("fp16", 2047, "packed", "shifted"),  # a step of the backward does not fit a block
    ("bf16", 2049, "packed", "shifted"),
    ("bf16", 4097, "shifted", "shifted"),  # no whole vectors, and so long that it does not matter
    ("bf16", 8200, "apart", "apart"),  # whole vectors: shifted only where nothing else supports them
    ("bf16", 65537, "shifted", "shifted"),
    ("bf16", 131072, "apart", "apart"),
    ("fp32", 33, "packed", "packed"),
    ("fp32", 64, "packed", "packed"),
    ("fp32", 128, "apart", "apart"),  # divides evenly
    ("fp32", 264, "packed", "packed"),
    ("fp32", 511, "packed", "packed"),
    ("fp32", 513, "packed", "packed"),
    ("fp32", 520, "apart", "packed"),
    ("fp32", 1001, "packed", "shifted"),
    ("fp32", 1025, "shifted", "shifted"),
]


@pytest.fixture(scope="module")
def widths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("layer_norm_gelu_widths", tmp_path_factory.mktemp("widths"))


def test_rows_of_each_width_get_the_kernel_that_was_measured_best(widths: Path) -> None:
    """The element type, the width, and the way forward and backward."""
    done = subprocess.run(
        [widths, *(str(width) for _, width, *_ in ONE_OF_EACH)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = [line.split("\t") for line in done.stdout.splitlines()]
    ways = {(name, int(d)): [way.split()[0] for way in each] for name, d, *each in found}
    for name, width, *expected in ONE_OF_EACH:
        assert ways[name, width] == expected, (name, width)


def test_packed_rows_leave_few_threads_idle(widths: Path) -> None:
    """The program itself stops where a step is larger than its block."""
    done = subprocess.run(
        [widths, *map(str, range(1, 2100))],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    packed = [line.split("\t") for line in done.stdout.splitlines() if "packed" in line]
    assert len(packed) > 2500
    for name, width, *ways in packed:
        for way in ways:
            assert way in ("apart", "shifted") or int(way.split()[1]) >= 80, (name, width, ways)
