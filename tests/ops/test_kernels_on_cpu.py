# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels, compiled as C++ and run on the CPU: what needs no GPU to be proven."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
EMULATION = Path(__file__).with_name("emulation")
Outcome = Callable[[str], "subprocess.CompletedProcess[str]"]
# Rounding the result alone gives 0.42 ulp in the mean square; the arithmetic before it may add little.
ALLOWED = {"bf16": 0.5 * 2**-7, "fp16": 0.5 * 2**-10, "fp32": 4 * 2**-23}


def cuda_headers() -> Path:
    """The folder with cuda_bf16.h: its conversions work on the host."""
    nvcc = shutil.which("nvcc", path="/usr/local/cuda/bin") or shutil.which("nvcc")
    for folder in (Path(nvcc).resolve().parents[1] / "include",) if nvcc else ():
        if (folder / "cuda_bf16.h").is_file():
            return folder
    pytest.skip("no CUDA toolkit: its headers define bf16 and fp16 for the kernels' source")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """outcome(op): of its kernels, compiled with the thread sanitizer and run once for all tests."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("kernels")

    @functools.cache
    def ran(op: str) -> subprocess.CompletedProcess[str]:
        command = [
            compiler, "-std=c++20", "-O1", "-w", "-g1", "-fsanitize=thread", f"-I{EMULATION}",
            f"-I{REPO / 'csrc'}", f"-isystem{cuda_headers()}", str(EMULATION / f"{op}.cpp"),
            "-o", str(folder / op), "-pthread",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return subprocess.run([folder / op], capture_output=True, text=True)

    return ran


@pytest.mark.slow
def test_layer_norm_gelu_agrees_with_double(outcome: Outcome) -> None:
    lines = outcome("layer_norm_gelu").stdout.splitlines()
    assert len(lines) == 18
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
@pytest.mark.parametrize("op", ["layer_norm_gelu", "attention_decode"])
def test_kernels_have_no_races_in_shared_memory(op: str, outcome: Outcome) -> None:
    done = outcome(op)
    assert "WARNING: ThreadSanitizer" not in done.stderr, done.stderr[:3000]
    assert done.returncode == 0, done.stderr[:3000]
