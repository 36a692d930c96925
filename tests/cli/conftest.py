# SPDX-License-Identifier: Apache-2.0
"""The terminal that tests of commands see."""

from __future__ import annotations

import pytest


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A usual one, whatever the tests were started from. Without TERM a screen has 80 columns."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
