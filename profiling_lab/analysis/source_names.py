# SPDX-License-Identifier: Apache-2.0
"""The class a function belongs to, read from its source, for recorders that know only the bare "forward"."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path, PurePath


def qualified(function: str, file: str, line: int, folder: Path | None = None) -> str:
    """Return "HeavyLayer.forward" for "forward" at that line, if the source agrees; else `function`.

    nsys, and any recorder on Python 3.10, see functions without their class. `folder` is looked in first, by
    the file's name: the recorded file may have changed since, or lie on another machine.
    """
    if "." in function or not function.isidentifier():
        return function
    candidate = folder / PurePath(file).name if folder else None
    path = candidate if candidate and candidate.is_file() else Path(file)
    around = [
        (first, name)
        for first, last, name in _functions(path)
        if first <= line <= last and name.rpartition(".")[2] == function
    ]
    return max(around)[1] if around else function


@lru_cache(maxsize=64)
def _functions(path: Path) -> tuple[tuple[int, int, str], ...]:
    """First line, last line and qualified name of every function in a file."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    found: list[tuple[int, int, str]] = []

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append((child.lineno, child.end_lineno or child.lineno, prefix + child.name))
                inner = f"{prefix}{child.name}.<locals>."
            elif isinstance(child, ast.ClassDef):
                inner = f"{prefix}{child.name}."
            walk(child, inner)

    walk(tree, "")
    return tuple(found)
