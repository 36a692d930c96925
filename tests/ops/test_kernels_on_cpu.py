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
    """outcome(op, *arguments): of its kernels, compiled with the thread sanitizer and run once for all
    tests; with sanitizes=False without it, for those that would take minutes.
    """
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "suppressed").write_text(SUPPRESSED)

    @functools.cache
    def ran(op: str, *arguments: str, sanitizes: bool = True) -> subprocess.CompletedProcess[str]:
        own = folder / ("races" if sanitizes else "plain")
        own.mkdir(exist_ok=True)
        program = built(op, own, *(["-fsanitize=thread"] if sanitizes else []))
        environment = {**os.environ, "TSAN_OPTIONS": f"suppressions={folder / 'suppressed'}"}
        return subprocess.run([program, *arguments], capture_output=True, text=True, env=environment)

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
@pytest.mark.parametrize(("op", "cases"), [("layer_norm_gelu", 29), ("layer_norm_gelu_packed", 16)])
def test_layer_norm_gelu_agrees_with_double(op: str, cases: int, outcome: Outcome) -> None:
    lines = outcome(op).stdout.splitlines()
    assert len(lines) == cases
    for line in lines:
        name, *errors, near_zero = line.split("\t")
        allowed = [ALLOWED[name[:4]]] * 4
        for what, error, bound in zip(("y", "dx", "dweight", "dbias"), errors, allowed, strict=True):
            assert float(error) < bound, f"{name}: {what} is off by {error}, allowed {bound:.2e}"
        if name.startswith("fp32"):  # where the mean's rounding shows: in one pass up to 1.4e-7
            assert float(near_zero) < 2**-24, f"{name}: a small y is off by {near_zero}"


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
    "op", ["layer_norm_gelu", "layer_norm_gelu_packed", "attention_decode", "attention_cache"]
)
def test_kernels_have_no_races_in_shared_memory(op: str, outcome: Outcome) -> None:
    done = outcome(op, *(["quick"] if op == "attention_cache" else []))
    assert "WARNING: ThreadSanitizer" not in done.stderr, done.stderr[:3000]
    assert done.returncode == 0, done.stderr[:3000]


ONE_OF_EACH = [
    (64, "bf16", "packed", "packed", "packed"),  # short: 8 of 32 lanes would have a vector
    (192, "bf16", "packed", "apart", "packed"),
    (264, "bf16", "packed", "packed", "packed"),  # one vector more than a warp's lanes
    (640, "bf16", "packed", "packed", "packed"),
    (768, "bf16", "apart", "apart", "apart"),  # divides evenly
    (1000, "bf16", "apart", "apart", "packed"),  # nearly: but with a residual no such kernel exists
    (1001, "bf16", "packed", "packed", "packed"),
    (1032, "bf16", "packed", "apart", "shifted"),
    (2047, "bf16", "packed", "shifted", "shifted"),
    (4097, "bf16", "shifted", "shifted", "shifted"),
    (4104, "bf16", "apart", "apart", "shifted"),
    (20480, "bf16", "apart", "apart", "apart"),  # left to clusters
    (3, "fp32", "apart", "apart", "apart"),  # shorter than a vector
    (33, "fp32", "packed", "packed", "packed"),
    (128, "fp32", "apart", "apart", "apart"),
    (520, "fp32", "apart", "packed", "packed"),
    (1001, "fp32", "shifted", "shifted", "shifted"),
]


def test_rows_of_each_width_get_the_kernel_that_was_measured_best(tmp_path: Path) -> None:
    """Widths, the element type, and the way forward, backward, and backward with a residual."""
    done = subprocess.run(
        [built("layer_norm_gelu_widths", tmp_path), *(str(width) for width, *_ in ONE_OF_EACH)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = [line.split("\t") for line in done.stdout.splitlines()]
    ways = {(int(d), name): [way.split()[0] for way in each] for name, d, *each in found}
    for width, name, *expected in ONE_OF_EACH:
        assert ways[width, name] == expected, (width, name)


def test_packed_rows_leave_few_threads_idle(tmp_path: Path) -> None:
    """At every width from 32 on; the program itself stops where a step does not fit its block."""
    done = subprocess.run(
        [built("layer_norm_gelu_widths", tmp_path), *map(str, range(8, 2100))],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    packed = 0
    for line in done.stdout.splitlines():
        _, d, *ways = line.split("\t")
        for way in ways:
            if way.startswith("packed") and int(d) >= 32:
                packed += 1
                assert int(way.split()[1]) >= 80, line
    assert packed > 5000
