# SPDX-License-Identifier: Apache-2.0
"""Every example of the page on the utilities runs, and the page knows all of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT

from profiling_lab import utils

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "utilities.md").read_text()
EXAMPLES = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_example_runs(example: str, tmp_path: Path) -> None:
    """Each in a process of its own: torch.profiler keeps CUPTI, and names are those of one example."""
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for name in re.findall(r'"(\S+\.json)"', example):
        assert (tmp_path / name).is_file()
    assert ("profile_training(" not in example) or (tmp_path / "logs" / "job.sqlite").is_file()


def test_the_page_has_every_tool() -> None:
    tools = {name for name in utils.__all__ if name not in ("Intensity", "MemoryUse", "ProfilingResult")}
    table = PAGE.partition("| tool |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == tools
