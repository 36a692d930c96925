# SPDX-License-Identifier: Apache-2.0
"""The terminal and the CUPTI that tests of commands see."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorder import compiled_fake


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A usual one, whatever the tests were started from. Without TERM a screen has 80 columns."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture(scope="session")
def fake_cupti(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_fake.fake_cupti(tmp_path_factory)
