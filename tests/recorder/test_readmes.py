# SPDX-License-Identifier: Apache-2.0
"""The pages on the recorder: tests that they name exist, figures are those of the results."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
REPO = TESTS.parent


def test_every_test_that_is_named_exists() -> None:
    page = (TESTS / "recorder" / "README.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    written = {
        name
        for folder in ("recorder", "trace")
        for file in (TESTS / folder).glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert len(named) > 60 and named <= written, named - written
    assert all((REPO / name).is_file() for name in re.findall(r"`(benchmarks/\w+\.py)`", page))
