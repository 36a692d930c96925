# SPDX-License-Identifier: Apache-2.0
"""Some of the damaged files of tests/fuzz_sqlite.py; running that file goes on for as long as wanted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import fuzz_sqlite
import pytest


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_damaged_traces_end_in_an_answer_or_in_one_sentence(tmp_path: Path, first: int) -> None:
    codes: Counter[int] = Counter()
    for seed in range(first, first + 20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        codes += fuzz_sqlite.case(seed, folder, verbs=2)[1]
    assert codes[0] + codes[1] > 5, "some traces are damaged where no reader looks"
    assert codes[4] > 5
