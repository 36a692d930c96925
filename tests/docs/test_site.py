# SPDX-License-Identifier: Apache-2.0
"""The documentation site has every page, and builds without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
CONFIG = REPO / "mkdocs.yml"


def test_every_page_is_on_the_site() -> None:
    named = set(re.findall(r"(?m)^ +- (?:.*: )?(\S+\.md)$", CONFIG.read_text()))
    pages = {
        page.relative_to(REPO).as_posix()
        for folder in ("docs", "csrc")
        for page in (REPO / folder).rglob("*.md")
    }
    assert pages and pages <= named, pages - named
    for name in named:
        assert name.startswith("api/") or (REPO / name).is_file(), name


@pytest.mark.slow
def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    for module in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(module, reason='needs pip install ".[docs]"')
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=REPO,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "flash_attention" in (tmp_path / "api" / "ops" / "index.html").read_text()
