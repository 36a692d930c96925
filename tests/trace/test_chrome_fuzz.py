# SPDX-License-Identifier: Apache-2.0
"""A few hundred of the damaged files of tests/fuzz_chrome.py, which goes on for as long as wanted."""

from __future__ import annotations

from pathlib import Path

import fuzz_chrome


def test_damaged_files_end_in_an_answer_or_in_one_sentence(tmp_path: Path) -> None:
    outcomes, failed = fuzz_chrome.run(range(300), seconds=600, folder=tmp_path)
    assert not failed
    assert outcomes["read and repaired"] > 50 and outcomes["read"] > 20 and outcomes["unreadable"] > 20
