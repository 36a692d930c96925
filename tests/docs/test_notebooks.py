# SPDX-License-Identifier: Apache-2.0
"""The notebooks run, and what they show is what is stored in them."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from generated_page import TOOLS, assert_current

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 500_000

sys.path.insert(0, str(TOOLS))
from run_notebooks import comparable, run  # noqa: E402

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text())
    return notebook


def code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_there_are_five_and_they_are_small() -> None:
    assert len(NOTEBOOKS) == 5
    assert sum(path.stat().st_size for path in NOTEBOOKS) < MOST_BYTES
    page = (FOLDER / "README.md").read_text()
    for path in NOTEBOOKS:
        assert f"({path.name})" in page
    assert "notebooks/README.md" in (REPO / "mkdocs.yml").read_text()


@each
def test_stored_outputs_are_what_comes_out(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason='the plots need pip install ".[test]"')
    assert_current("run_notebooks.py", tmp_path, path.name)


@each
def test_a_notebook_is_whole(path: Path) -> None:
    notebook = read(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    cells = code(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    shown = [output["output_type"] for cell in cells for output in cell["outputs"]]
    assert "error" not in shown and shown.count("execute_result") >= 2 and "display_data" in shown
    tables = [cell for cell in cells for output in cell["outputs"] if "text/html" in output.get("data", {})]
    assert tables, "tables are shown as HTML"


@each
def test_it_uses_what_the_clone_has_and_names_no_machine(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users|opt|mnt|data)/", text)
    for cell in code(read(path)):
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "../" in node.value:
                # What is in braces is filled in by the cell; an f-string comes in pieces.
                names = re.sub(r"\{[^}]*\}", "*", node.value.removeprefix("../"))
                assert list(REPO.glob(f"{names}*")), node.value
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert "://" in target or (FOLDER / target).is_file(), target


def test_the_runner_shows_what_jupyter_shows(tmp_path: Path) -> None:
    def cell(number: int, *source: str) -> dict[str, Any]:
        return {"cell_type": "code", "id": f"cell-{number}", "source": list(source)}

    table = "class T:\n    def _repr_html_(self): return '<b>3</b>'\n    def __repr__(self): return '3'\n"
    notebook = {
        "cells": [
            cell(1, "x = 2\n", "print('a', x)\n", "x + 1"),
            {"cell_type": "markdown", "id": "text", "source": ["# T"]},
            cell(2, table, "T()"),
            cell(3, "x = None\n", "x"),
        ]
    }
    first, text, second, third = run(notebook, tmp_path)["cells"]
    assert first["outputs"][0] == {"name": "stdout", "output_type": "stream", "text": ["a 2\n"]}
    assert first["outputs"][1]["data"] == {"text/plain": ["3"]} and first["execution_count"] == 1
    assert text == notebook["cells"][1]
    assert second["outputs"][0]["data"] == {"text/plain": ["3"], "text/html": ["<b>3</b>"]}
    assert third["outputs"] == [] and third["execution_count"] == 3
    stale = run(notebook, tmp_path)
    stale["cells"][0]["outputs"][1]["data"]["text/plain"] = ["4"]
    assert comparable(stale) != comparable(run(notebook, tmp_path))
