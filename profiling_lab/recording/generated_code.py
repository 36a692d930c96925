# SPDX-License-Identifier: Apache-2.0
"""Kernels that torch.compile wrote belong to the lines of the program that they were written from.

Inductor's code calls its kernels from a file of its own, and remembers for each of its lines where the
operator came from. The recorder asks for that at its end; origin_frames.py puts it into the stacks.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from typing import Any

from profiling_lab.recording.meta_names import GENERATED_CODE

# torch.compile's name for what follows a graph break.
_RESUMED = re.compile(r"\btorch_dynamo_resume_in_(\w+)_at_\d+")

Origin = tuple[str, str, int, int]
"""file, function, its first line, line"""


def origins() -> dict[str, str]:
    """Meta entries: where the generated code of this process came from, none where there is no such code.

    JSON: frames as (file, function, first line, line), and per generated file pairs of its line and the
    numbers of the frames behind it, outermost first. Raises nothing: a torch that keeps this elsewhere, or
    in another form, has none.
    """
    cache: Any = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    numbers: dict[Origin, int] = {}
    names: dict[str, list[tuple[int, int, str]]] = {}
    files: dict[str, list[tuple[int, list[int]]]] = {}
    chains: dict[str, list[int]] = {}  # by torch's text: many lines have the same origin
    try:
        for path, columns in dict(cache.linemaps).items():
            for line, text in zip(*columns, strict=True) if columns else ():
                if text not in chains:
                    frames = cache.stack_frames_for_code(path, line) or []
                    named = [
                        _named(f["filename"], f["name"], int(f["line"]), names) for f in reversed(frames)
                    ]
                    chains[text] = [numbers.setdefault(frame, len(numbers)) for frame in named]
                files.setdefault(path, []).append((line, chains[text]))
    except Exception:
        return {}
    return {GENERATED_CODE: json.dumps({"frames": list(numbers), "files": files})} if files else {}


def _named(file: str, name: str, line: int, names: dict[str, list[tuple[int, int, str]]]) -> Origin:
    """A frame with the qualified name of its function, as all other frames have it."""
    name = written_name(name)
    if file not in names:
        names[file] = []
        if "/site-packages/" not in file and "/dist-packages/" not in file:
            try:
                with tokenize.open(file) as source:
                    names[file] = list(_functions(ast.parse(source.read()), ""))
            except (OSError, SyntaxError, ValueError):
                pass  # a notebook's cell, or edited since: the plain name has to do
    around = [f for f in names[file] if f[0] <= line <= f[1] and f[2].split(".")[-1] == name]
    first, _, qualified = max(around, default=(0, 0, name))
    return (file, qualified, first, line)


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[int, int, str]]:
    for node in ast.iter_child_nodes(tree):
        inside = prefix
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno or node.lineno, prefix + node.name
            inside = f"{prefix}{node.name}.<locals>."
        elif isinstance(node, ast.ClassDef):
            inside = f"{prefix}{node.name}."
        yield from _functions(node, inside)


def written_name(function: str) -> str:
    """The function's name in the program: after a graph break torch.compile runs the rest under another."""
    return _RESUMED.sub(r"\1", function)
