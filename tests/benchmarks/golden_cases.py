# SPDX-License-Identifier: Apache-2.0
"""The modules of benchmarks/ranks, for tests. They find each other by plain names, which others use, too."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from conftest import REPO

FOLDER = REPO / "benchmarks" / "ranks"


def load(name: str) -> ModuleType:
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
        for new in set(sys.modules) - before:
            if (getattr(sys.modules[new], "__file__", None) or "").startswith(str(FOLDER)):
                del sys.modules[new]
