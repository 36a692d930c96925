# SPDX-License-Identifier: Apache-2.0
"""Pages whose figures and examples a script in tools/ writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from package_root import PACKAGE_ROOT

TOOLS = Path(__file__).resolve().parents[1] / "tools"


def assert_current(script: str, folder: Path, *names: str) -> None:
    """What tools/<script> writes is what the repository holds; run in a folder that holds nothing of it.

    names: the pages to look at, where the script has several.
    """
    done = subprocess.run(
        [sys.executable, str(TOOLS / script), "--check", *names],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"run python tools/{script}\n{done.stdout}{done.stderr}"
