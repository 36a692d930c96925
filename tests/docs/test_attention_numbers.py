# SPDX-License-Identifier: Apache-2.0
"""The figures in the pages of the attention ops are those of the results files."""

from __future__ import annotations

from pathlib import Path

from generated_page import assert_current


def test_pages_say_what_the_results_say(tmp_path: Path) -> None:
    assert_current("attention_numbers.py", tmp_path)
