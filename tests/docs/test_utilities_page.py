# SPDX-License-Identifier: Apache-2.0
"""Every example of the page on the utilities runs, and the page knows all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs.forked import outcomes

from profiling_lab import utils

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "utilities.md").read_text()
EXAMPLES = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, tuple[int, str]]:
    """Each in a process of its own: torch.profiler keeps CUPTI, and names are those of one example."""
    folder = tmp_path_factory.mktemp("examples")
    return outcomes({folder / str(number): example for number, example in enumerate(EXAMPLES)})


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_example_runs(number: int, ran: dict[Path, tuple[int, str]]) -> None:
    example = EXAMPLES[number]
    ((folder, (status, printed)),) = (item for item in ran.items() if item[0].name == str(number))
    assert status == 0, printed
    for name in re.findall(r'"(\S+\.json)"', example):
        assert (folder / name).is_file()
    assert ("profile_training(" not in example) or (folder / "logs" / "job.sqlite").is_file()


def test_the_page_has_every_tool() -> None:
    tools = {name for name in utils.__all__ if name not in ("Intensity", "MemoryUse", "ProfilingResult")}
    table = PAGE.partition("| tool |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == tools
