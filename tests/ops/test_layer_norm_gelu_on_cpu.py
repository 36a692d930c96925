# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of layer_norm_gelu, compiled as C++ and run on the CPU: what needs no GPU to be proven."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
EMULATION = Path(__file__).with_name("emulation")
# Rounding the result alone gives 0.42 ulp in the mean square; the arithmetic before it may add little.
ALLOWED = {"bf16": 0.5 * 2**-7, "fp16": 0.5 * 2**-10, "fp32": 4 * 2**-23}


def cuda_headers() -> Path:
    """The folder with cuda_bf16.h: its conversions work on the host."""
    nvcc = shutil.which("nvcc", path="/usr/local/cuda/bin") or shutil.which("nvcc")
    for folder in (Path(nvcc).resolve().parents[1] / "include",) if nvcc else ():
        if (folder / "cuda_bf16.h").is_file():
            return folder
    pytest.skip("no CUDA toolkit: its headers define bf16 and fp16 for the kernels' source")


def build(target: Path, *flags: str) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    command = [
        compiler, "-std=c++20", "-O1", "-w", *flags, f"-I{EMULATION}", f"-I{REPO / 'csrc'}",
        f"-isystem{cuda_headers()}", str(EMULATION / "layer_norm_gelu.cpp"), "-o", str(target), "-pthread",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def test_kernels_agree_with_double(tmp_path: Path) -> None:
    done = subprocess.run([build(tmp_path / "kernels")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 18
    for line in lines:
        name, *errors, near_zero = line.split("\t")
        allowed = [ALLOWED[name[:4]]] * 4
        for what, error, bound in zip(("y", "dx", "dweight", "dbias"), errors, allowed, strict=True):
            assert float(error) < bound, f"{name}: {what} is off by {error}, allowed {bound:.2e}"
        if name.startswith("fp32"):  # where the mean's rounding shows: in one pass up to 1.4e-7
            assert float(near_zero) < 2**-24, f"{name}: a small y is off by {near_zero}"


@pytest.mark.slow
def test_kernels_have_no_races_in_shared_memory(tmp_path: Path) -> None:
    program = build(tmp_path / "kernels", "-g", "-fsanitize=thread")
    done = subprocess.run([program], capture_output=True, text=True)
    assert "WARNING: ThreadSanitizer" not in done.stderr, done.stderr[:3000]
    assert done.returncode == 0, done.stderr[:3000]
