# SPDX-License-Identifier: Apache-2.0
"""Lines of a loop of which no pass needs what another has computed, so that all could be one batch.

The text of the line says so: the passes of a comprehension do not see each other's results; what is appended,
stored at an index or added up is looked at after the loop, unless the line reads what the loop computes; and
gradients of `loss = f(part)` add up where another line says `loss.backward()`.
"""

from __future__ import annotations

import ast
from typing import Literal

from profiling_lab.rules.expressions import assigned_names, calls_named, reads
from profiling_lab.rules.own_frames import frames_around
from profiling_lab.rules.pure_lines import statement_of
from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import unique

Loop = Literal["in the line", "around the line"]
"""a comprehension, or a statement in a loop"""
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class IndependentLines:
    """As `lines.of(frame)`."""

    def __init__(self, view: View) -> None:
        self._texts = view.trace.source_texts
        self._known: dict[Frame, Loop | None] = {}
        self._inside: dict[tuple[str, str], set[int]] = {}
        for row in unique(view.own_row[view.attribution.stack]).tolist():
            for frame in frames_around(view, row):
                self._inside.setdefault((frame.file, frame.function), set()).add(frame.line)

    def of(self, frame: Frame) -> Loop | None:
        """None if a pass may need another one, or the text is not known."""
        if frame not in self._known:
            statement = self._statement(frame.file, frame.line)
            lines = self._inside.get((frame.file, frame.function), set()) - {frame.line}
            others = [found for line in lines if (found := self._statement(frame.file, line))]
            self._known[frame] = _loop(statement, others) if statement else None
        return self._known[frame]

    def _statement(self, file: str, line: int) -> ast.stmt | None:
        return statement_of(self._texts.get((file, line), ""))


def _loop(statement: ast.stmt, others: list[ast.stmt]) -> Loop | None:
    """others: those of the same function."""
    collected, value = _collected(statement, others)
    computed = collected.union(*map(assigned_names, others))
    if collected:
        return None if any(reads(part, computed) for part in value) else "around the line"
    nodes = [node for node in ast.walk(statement) if isinstance(node, _COMPREHENSIONS)]
    return "in the line" if any(_calls_the_same(node) for node in nodes) else None


def _calls_the_same(node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> bool:
    """Not one module or object after another: they have weights of their own."""
    each = {name for generator in node.generators for name in _names(generator.target)}
    element = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    calls = [call for part in element for call in ast.walk(part) if isinstance(call, ast.Call)]
    return any(not reads(call.func, each) and any(reads(part, each) for part in call.args) for call in calls)


def _collected(statement: ast.stmt, others: list[ast.stmt]) -> tuple[set[str], list[ast.expr]]:
    """The names of what takes the results of all passes, and what it takes."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        return set().union(
            *(_names(each.func) for each in calls_named(call, "append") if each is call)
        ), call.args
    if isinstance(statement, ast.AugAssign):
        return _names(statement.target), [statement.value]
    if isinstance(statement, ast.Assign):
        if isinstance(target := statement.targets[0], ast.Subscript):
            return _names(target.value), [statement.value]
        losses = assigned_names(statement)
        if any(reads(call.func, losses) for other in others for call in calls_named(other, "backward")):
            return losses, [statement.value]
    return set(), []


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
