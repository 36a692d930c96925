# SPDX-License-Identifier: Apache-2.0
"""Where the package under test lies: installed, or in the source tree of a developer who built in place."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def _package_root() -> Path:
    spec = find_spec("profiling_lab")
    assert spec is not None and spec.origin is not None, "profiling_lab is not importable"
    return Path(spec.origin).resolve().parents[1]


PACKAGE_ROOT = _package_root()
"""For the PYTHONPATH of processes that a test starts, so that they import what the test imports."""
