# SPDX-License-Identifier: Apache-2.0
"""`record --memory` on a real GPU: the peak is torch's own, to the byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import profiling_lab

pytestmark = pytest.mark.gpu
PROGRAMS = Path(__file__).resolve().parents[2] / "tools" / "memory_programs.py"


@pytest.mark.parametrize("name", ["eager", "checkpointing", "out_of_memory", "cuda_graph", "streams"])
def test_the_peak_is_torchs_own(name: str, tmp_path: Path) -> None:
    out = tmp_path / "run.sqlite"
    done = subprocess.run(
        [sys.executable, "-m", "profiling_lab", "record", "--memory", "-o", str(out), str(PROGRAMS), name,
         "--out", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(profiling_lab.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    peak = json.loads((tmp_path / f"{name}.json").read_text())["peak_bytes"]
    for path in (out, tmp_path / f"{name}.pickle"):
        with profiling_lab.open(path) as trace:
            table = trace.memory()
            assert sum(table["bytes"]) == table.facts["devices"][0]["peak_bytes"] == peak
