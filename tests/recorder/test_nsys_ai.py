# SPDX-License-Identifier: Apache-2.0
"""nsys-ai, which knows nothing of us, reads a recording as it reads an export of nsys."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nsys_ai") is None, reason="nsys-ai is not installed (pip install nsys-ai)"
)

PROGRAM = """
from nvtx_app import app
with profiling_lab.record(OUT):
    library = app("one.so")
    library.app_push(b"step")
    for _ in range(4): fake.kernel("_ZN2at6native4fillIfEEvPT_i", ns=200_000)
    library.app_pop()
    fake.kernel("other", ns=50_000, stream=8)
    for _ in range(3): fake.copy(nbytes=1 << 20)
    fake.call(DEVICE_SYNC)
"""


# All in one process: each looks for an extension of its database on the network first.
ASK = """
import contextlib, io, json, sys
from nsys_ai.cli.app import main
answers = {}
for skill in sys.argv[2:]:
    sys.argv[1:] = ["skill", "run", skill, PATH, "--format", "json"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main()
    assert not status, (skill, status)
    answers[skill] = json.loads(out.getvalue())
print(json.dumps(answers))
"""
SKILLS = ("top_kernels", "nvtx_kernel_map", "memory_transfers", "kernel_launch_pattern", "sync_cost_analysis")


@pytest.mark.slow
def test_its_skills_read_a_recording(run: Any, apps: dict[str, str], tmp_path: Path) -> None:
    run(PROGRAM, env=apps)
    ask = ASK.replace("PATH", repr(str(tmp_path / "out.sqlite")))
    done = subprocess.run(
        [sys.executable, "-c", ask, "-", *SKILLS], capture_output=True, text=True, timeout=600, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    kernels, ranges, copies, streams, waits = (json.loads(done.stdout)[skill] for skill in SKILLS)
    assert {row["kernel_name"]: (row["invocations"], row["total_ms"]) for row in kernels} == {
        "void at::native::fill<float>(float*, int)": (4, 0.8),
        "other": (1, 0.05),
    }
    assert [(row["nvtx_path"], row["kernel_name"]) for row in ranges] == [("step", "fill")] * 4
    assert [(row["copyKind"], row["count"], row["total_mb"]) for row in copies] == [(1, 3, 3.15)]
    assert {row["streamId"]: row["kernel_count"] for row in streams} == {7: 4, 8: 1}
    (kinds,) = (row["sync_by_type_ms"] for row in waits)
    assert list(kinds) == ["CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE"]
