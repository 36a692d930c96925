# SPDX-License-Identifier: Apache-2.0
"""Run the notebooks of notebooks/ and store what they show.

    python tools/run_notebooks.py                      # runs every notebook and rewrites its outputs
    python tools/run_notebooks.py --check              # exit code 1 where an output is not what is stored
    python tools/run_notebooks.py 01_first_look.ipynb  # only these

A cell runs as Jupyter runs it: all share their names, the value of a last expression is shown, and so are the
figures of matplotlib. No Jupyter is needed. Pictures are stored, but not compared: fonts differ.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import difflib
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
DOTS_PER_INCH = 80

Cell = dict[str, Any]


def run(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The notebook with the outputs of its cells, run in `folder` in their order."""
    names: dict[str, Any] = {"__name__": "__main__"}
    there = Path.cwd()
    os.chdir(folder)
    try:
        cells, number = [], 0
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                cell = cell | {"execution_count": number, "outputs": list(_outputs(cell, number, names))}
            cells.append(cell)
    finally:
        os.chdir(there)
    return notebook | {"cells": cells}


def _outputs(cell: Cell, number: int, names: dict[str, Any]) -> Iterator[dict[str, Any]]:
    body = ast.parse("".join(cell["source"]), f"<cell {number}>")
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*non-interactive.*"
        )  # plt.show() where there is no screen
        exec(compile(body, f"<cell {number}>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)
    if printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())}
    for picture in _figures():
        yield {
            "data": {"image/png": picture, "text/plain": ["<Figure>"]},
            "metadata": {},
            "output_type": "display_data",
        }
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(value._repr_html_())
        yield {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}


def _figures() -> Iterator[str]:
    """The open figures as PNG, in base64. They are closed."""
    plt = sys.modules.get("matplotlib.pyplot")
    for number in plt.get_fignums() if plt else ():
        stream = io.BytesIO()
        plt.figure(number).savefig(
            stream, dpi=DOTS_PER_INCH, bbox_inches="tight", metadata={"Software": None}
        )
        plt.close(number)
        yield base64.b64encode(stream.getvalue()).decode()


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def comparable(notebook: dict[str, Any]) -> list[str]:
    """What must come out again: every output but the pictures, of which only that there is one."""
    out = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text": output.get("text", [])})
            for kind, content in sorted(data.items()):
                out.append(f"-- {cell['id']} {output['output_type']} {kind}\n")
                out += [] if kind.startswith("image/") else [line.rstrip("\n") + "\n" for line in content]
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the notebooks.")
    parser.add_argument("names", nargs="*", help="file names in notebooks/ (default: all)")
    parser.add_argument("--check", action="store_true", help="write nothing; compare with what is stored")
    args = parser.parse_args()
    os.environ["MPLBACKEND"] = "agg"
    os.environ.pop("COLUMNS", None)
    stale = 0
    for path in [FOLDER / name for name in args.names] or sorted(FOLDER.glob("*.ipynb")):
        stored = json.loads(path.read_text())
        now = run(stored, FOLDER)
        if args.check:
            changes = list(
                difflib.unified_diff(comparable(stored), comparable(now), path.name, "what comes out now")
            )
            sys.stderr.writelines(changes)
            stale += bool(changes)
        else:
            path.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n")
            print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
