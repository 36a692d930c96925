# SPDX-License-Identifier: Apache-2.0
"""A report page of the H200 recording that ships with the package, and a browser to look at pages with."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from browser import WIDE, Browser, find_browser

from profiling_lab.report.html import build_page
from profiling_lab.trace import Trace

RECORDED = Path(str(files("profiling_lab.exercises.e17_python_backtrace"))) / "recorded"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "demo.html"
    with Trace.open(RECORDED / "demo_h200.sqlite") as trace:
        path.write_bytes(build_page(trace).html)
    return path


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[Browser]:
    path = find_browser()
    assert path is not None
    try:
        started = Browser(path, *WIDE)
    except (RuntimeError, OSError) as error:  # a container without what a browser needs
        pytest.skip(f"{path} does not start here: {error}")
    with started:
        started.open(page)
        yield started


@pytest.fixture
def quiet(browser: Browser) -> Iterator[None]:
    """Whatever a test does, the page neither complains nor loads anything but itself."""
    browser.console.clear()
    browser.requests.clear()
    yield
    browser.run("1")  # hear what was said last
    assert browser.console == []
    assert [url for url in browser.requests if not url.startswith("file:")] == []
