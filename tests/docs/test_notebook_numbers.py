# SPDX-License-Identifier: Apache-2.0
"""The figures in the notebook of the ops are those of the results files."""

from __future__ import annotations

from pathlib import Path

import pytest
from generated_page import assert_current


@pytest.mark.parametrize("tool", ["attention_numbers.py", "width_numbers.py"])
def test_pages_say_what_the_results_say(tool: str, tmp_path: Path) -> None:
    assert_current(tool, tmp_path)
