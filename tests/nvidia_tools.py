# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's command line tools, where they are installed."""

from __future__ import annotations

import shutil

import pytest


def needs(tool: str) -> str:
    """The tool's path; skips the test where there is none."""
    path = shutil.which(tool) or shutil.which(tool, path="/usr/local/cuda/bin")
    if path is None:
        pytest.skip(f"{tool} is not installed")
    return path
