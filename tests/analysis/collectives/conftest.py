# SPDX-License-Identifier: Apache-2.0
"""The job of two GPUs (tests/data/ddp_h200), unpacked once."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2] / "data" / "ddp_h200"


@pytest.fixture(scope="session")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ddp")
    for path in DATA.glob("*.gz"):
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    return folder
