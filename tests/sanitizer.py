# SPDX-License-Identifier: Apache-2.0
"""Runs a program under NVIDIA's compute-sanitizer."""

from __future__ import annotations

import os
import subprocess
import sys

from needs import needs, needs_gpu_memory
from package_root import PACKAGE_ROOT


def assert_finds_nothing(tool: str, program: str, *arguments: str, **variables: str) -> None:
    """The tool reports nothing about `program`, Python that prints "ran" as its last act.

    variables: of the environment, in addition to this process' own.
    """
    sanitizer = needs("compute-sanitizer")
    needs_gpu_memory(8)
    path = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path, **variables},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=600,
    )
    output = done.stdout + done.stderr
    assert "ran" in done.stdout.splitlines(), f"the program did not come to its end:\n{output[-3000:]}"
    assert done.returncode == 0, output[-3000:]
