# SPDX-License-Identifier: Apache-2.0
"""The tasks of attention's CPU path with every kind of products, also those that this CPU cannot do."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
EMULATION = REPO / "tests" / "ops" / "emulation"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="matrix tiles are of x86-64")
def test_agree_with_double(tmp_path: Path) -> None:
    """bfloat16 has 8 bits, and for tiles P and dS have, too. The workspace is as large as it is used."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    command = [
        compiler, "-std=c++20", "-O0", "-w", "-fsanitize=address", f"-I{REPO / 'csrc'}",
        str(EMULATION / "attention_cpu.cpp"), "-o", str(tmp_path / "tasks"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([tmp_path / "tasks"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    lines = done.stdout.splitlines()
    assert len(lines) == 20
    for line in lines:
        name, out, lse, *gradients = line.split("\t")
        allowed = 2**-7 if name.startswith("tiles") else 2**-8
        assert float(lse) < 1e-5 and float(out) < allowed, line
        assert all(float(error) < 2 * allowed for error in gradients), line
