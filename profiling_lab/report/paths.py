# SPDX-License-Identifier: Apache-2.0
"""Paths of source files as tables show them."""

from __future__ import annotations

import os
import re
from pathlib import Path

_INSTALLED = re.compile(r"/(site|dist)-packages/")


def shown_path(file: str) -> str:
    """The part of a path that distinguishes files: below the current folder, or below site-packages."""
    if match := _INSTALLED.search(file):
        return file[match.end() :]
    if not file.startswith("/"):
        return file
    relative = os.path.relpath(file, Path.cwd())
    return file if relative.startswith("..") else relative
