# SPDX-License-Identifier: Apache-2.0
"""CUDA events against a recording of the same kernels: what docs/guide/timing.md says of them."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT

pytestmark = pytest.mark.gpu

PROGRAM = """
import json
import torch
import profiling_lab

large = torch.randn(4096, 4096, device="cuda")
tiny = torch.randn(8, device="cuda")
calls = {"large": lambda: large @ large, "tiny": lambda: [tiny.add_(1) for _ in range(200)]}
for call in calls.values():
    call()
torch.cuda.synchronize()
spans = {}
for name, call in calls.items():
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with profiling_lab.record(f"{name}.sqlite"):
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
    spans[name] = 1e6 * begin.elapsed_time(end)
print(json.dumps(spans))
"""
RESOLUTION_NS = 5_000  # of two events, and of clocks that are converted
KERNELS = "SELECT count(*), sum(end - start), max(end) - min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL"


def test_events_span_the_kernels_and_the_gaps_between_them(tmp_path: Path) -> None:
    """However slowly the host launches, the span holds all of it: it is an upper limit of the work."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    spans = json.loads(done.stdout.splitlines()[-1])
    counts = {}
    for name, span_ns in spans.items():
        with sqlite3.connect(tmp_path / f"{name}.sqlite") as file:
            counts[name], work_ns, wall_ns = file.execute(KERNELS).fetchone()
        assert 0 < work_ns <= wall_ns <= span_ns + RESOLUTION_NS, name
    assert counts["tiny"] == 200 > counts["large"] >= 1
