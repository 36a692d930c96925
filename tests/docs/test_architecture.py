# SPDX-License-Identifier: Apache-2.0
"""The walks of docs/architecture.md name files that exist, are short, and really take part."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "architecture.md").read_text()
PATH = re.compile(r"`((?:csrc|profiling_lab|tests)/[\w/.]+\.\w+)`")
RECORDED = REPO / "profiling_lab" / "exercises" / "e17_python_backtrace" / "recorded"
FILES_AT_MOST = {"lines": 30, "layer_norm_gelu": 14, "finding": 30}


def walk(of: str) -> list[str]:
    """The files of the walk whose heading has this word, in order."""
    (section,) = (part for part in re.split(r"(?m)^## ", PAGE)[1:] if of in part.partition("\n")[0])
    steps = re.findall(r"(?m)^(\d+)\. (.+)$", section)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    return [PATH.findall(text)[0] for _, text in steps]


def test_every_path_exists() -> None:
    paths = PATH.findall(PAGE)
    assert len(paths) > 60
    for path in paths:
        assert (REPO / path).is_file(), path


@pytest.mark.parametrize("of", FILES_AT_MOST)
def test_a_walk_names_each_file_once_and_not_many(of: str) -> None:
    files = walk(of)
    assert 10 <= len(files) == len(set(files)) <= FILES_AT_MOST[of]


@pytest.mark.parametrize(
    ("of", "program"),
    [
        ("lines", f"main(['lines', {str(RECORDED / 'demo_h200.sqlite')!r}])"),
        ("finding", f"main(['check', {str(RECORDED / 'nsys_h200.sqlite')!r}])"),
        ("layer_norm_gelu", "import torch, profiling_lab.ops as ops; ops.layer_norm_gelu(*torch.ones(3, 8))"),
    ],
)
def test_python_files_of_a_walk_take_part(of: str, program: str) -> None:
    """Each module of the walk is loaded by the command that the walk tells of; recording's own are not."""
    if of == "layer_norm_gelu":
        pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; from profiling_lab.cli import main; {program}; "
         "print(*sys.modules, file=sys.stderr)"],
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        cwd="/",  # not the source tree, whose package may not be built
        capture_output=True,
        text=True,
    )  # fmt: skip
    loaded = done.stderr.split()
    for path in walk(of):
        if path.startswith("profiling_lab/") and not path.startswith("profiling_lab/recording/"):
            assert path.removesuffix(".py").replace("/", ".") in loaded, path
