# SPDX-License-Identifier: Apache-2.0
"""Lines that need what they made before, as `state = cell(word, state)` does: their calls cannot be one."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import numpy as np

from profiling_lab.rules.own_frames import frames_around
from profiling_lab.rules.pure_lines import statement_of
from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import I64

_Flow = tuple[set[str], set[str]]
"""what a line gives a value, and what it reads"""


def comes_back(view: View, rows: I64, unknown: bool = True) -> bool:
    """Whether what the line that launched most of these operations makes comes back to it, or to a line of
    yours that calls it, through lines of that function whose text is known; `unknown` where the text is not.
    """
    stacks, texts = view.trace.stacks, view.trace.source_texts
    row = int(np.bincount(view.own_row[view.attribution.stack[rows]]).argmax())
    for line in frames_around(view, row):
        if (flow := _flow(texts.get((line.file, line.line), ""))) is None:
            if unknown:
                return True
        elif _returns_to(texts, stacks.frames, line, flow):
            return True
    return False


def _returns_to(
    texts: Mapping[tuple[str, int], str], frames: tuple[Frame, ...], line: Frame, mine: _Flow
) -> bool:
    lines = {(f.file, f.line) for f in frames if (f.file, f.function) == (line.file, line.function)}
    flows = [flow for each in lines if (flow := _flow(texts.get(each, "")))]
    reached, before = mine[0], -1
    while len(reached) > before:
        before = len(reached)
        reached = reached.union(*(made for made, read in flows if read & reached))
    return bool(reached & mine[1])


def _flow(text: str) -> _Flow | None:
    """What is appended to a list, or added to a sum, is no reading of it."""
    statement = statement_of(text)
    if statement is None:
        return None
    nodes = [node for node in ast.walk(statement) if isinstance(node, (ast.Name, ast.Attribute))]
    made = {ast.unparse(node) for node in nodes if isinstance(node.ctx, ast.Store)}
    stored = [node for node in ast.walk(statement) if isinstance(node, ast.Subscript)]
    made |= {ast.unparse(node.value) for node in stored if isinstance(node.ctx, ast.Store)}
    read = {ast.unparse(node) for node in nodes if isinstance(node.ctx, ast.Load)}
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value
        if isinstance(called.func, ast.Attribute):
            made.add(ast.unparse(called.func.value))
            read = {ast.unparse(n) for part in called.args for n in ast.walk(part) if isinstance(n, ast.expr)}
    return made, read - {"self"}
