# SPDX-License-Identifier: Apache-2.0
"""For which GPUs a build compiles: those asked for, else those present, else all."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
ALL = "80;90a-real"
KNOWN = "compute_75 compute_80 compute_86 compute_89 compute_90 compute_100"


def chosen(folder: Path, *, gpus: str | None, asked: str | None = None) -> str:
    """CMake's choice where nvidia-smi prints `gpus` (None: it fails) and TORCH_CUDA_ARCH_LIST is `asked`."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("needs cmake")
    smi, nvcc = folder / "nvidia-smi", folder / "nvcc"
    smi.write_text("#!/bin/sh\nexit 9\n" if gpus is None else f"#!/bin/sh\nprintf '%s\\n' {gpus}\n")
    nvcc.write_text(f"#!/bin/sh\nprintf '%s\\n' {KNOWN}\n")
    for program in (smi, nvcc):
        program.chmod(0o755)
    script = folder / "ask.cmake"
    script.write_text(
        f'include("{REPO}/cmake/CudaArchitectures.cmake")\n'
        'plab_cuda_architectures(found)\nmessage("${found}")\n'
    )
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "CUDACXX": str(nvcc)}
    if asked is not None:
        environment["TORCH_CUDA_ARCH_LIST"] = asked
    done = subprocess.run([cmake, "-P", script], env=environment, capture_output=True, text=True, check=True)
    return done.stderr.strip()


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        pytest.param("9.0", "90a-real", id="one-h200"),
        pytest.param("9.0 9.0", "90a-real", id="two-h200"),
        pytest.param("8.9 8.0", "89-real;80-real", id="two-kinds"),
        pytest.param(None, ALL, id="no-driver"),
        pytest.param("", ALL, id="no-gpu"),
        pytest.param("7.5", ALL, id="older-than-the-kernels"),
        pytest.param("13.0", ALL, id="newer-than-nvcc-whose-ptx-it-runs"),
        pytest.param("[N/A]", ALL, id="a-driver-that-does-not-say"),
    ],
)
def test_the_gpus_of_the_machine(tmp_path: Path, gpus: str | None, expected: str) -> None:
    assert chosen(tmp_path, gpus=gpus) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("8.0 9.0a 12.0+PTX", "80-real;90a-real;120"),
        ("8.0+PTX,9.0a", ALL),
        ("8.6;8.9", "86-real;89-real"),
        ("", "100-real"),
    ],
)
def test_torchs_list_comes_first(tmp_path: Path, asked: str, expected: str) -> None:
    assert chosen(tmp_path, gpus="10.0", asked=asked) == expected
