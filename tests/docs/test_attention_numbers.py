# SPDX-License-Identifier: Apache-2.0
"""The figures in the pages of the attention ops are those of the results files."""

from __future__ import annotations

import subprocess
import sys

from conftest import REPO


def test_pages_say_what_the_results_say() -> None:
    done = subprocess.run(
        [sys.executable, str(REPO / "docs" / "attention_numbers.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
