# SPDX-License-Identifier: Apache-2.0
"""Lines of a loop of which no pass needs what another has computed, so that all could be one batch.

The text of the line says so: the passes of a comprehension do not see each other's results; what is appended,
stored at an index or added up is looked at after the loop, unless the line reads what the loop computes; and
gradients of `loss = f(part)` add up where another line says `loss.backward()`.
"""

from __future__ import annotations

import ast
from typing import Literal

from profiling_lab.rules.expressions import (
    COMPREHENSIONS,
    assigned_names,
    called_name,
    calls_named,
    names_in,
    reads,
)
from profiling_lab.rules.own_frames import frames_around
from profiling_lab.rules.statements import Statements
from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import unique

Loop = Literal["in the line", "around the line"]
"""a comprehension, or a statement in a loop"""


class IndependentLines:
    """As `lines.of(frame)`."""

    def __init__(self, view: View) -> None:
        self._statements = Statements(view)
        self._known: dict[Frame, Loop | None] = {}
        self._inside: dict[tuple[str, str], set[Frame]] = {}
        for row in unique(view.own_row[view.attribution.stack]).tolist():
            for frame in frames_around(view, row):
                self._inside.setdefault((frame.file, frame.function), set()).add(frame)

    def of(self, frame: Frame) -> Loop | None:
        """None if a pass may need another one, or the text is not known."""
        if frame not in self._known:
            statement = self._statements.at(frame)
            lines = self._inside.get((frame.file, frame.function), set()) - {frame}
            others = [found for line in lines if (found := self._statements.at(line))]
            self._known[frame] = _loop(statement, others) if statement else None
        return self._known[frame]


def _loop(statement: ast.stmt, others: list[ast.stmt]) -> Loop | None:
    """others: those of the same function."""
    collected, value = _collected(statement, others)
    computed = collected.union(*map(assigned_names, others))
    if collected:
        return None if any(reads(part, computed) for part in value) else "around the line"
    nodes = [node for node in ast.walk(statement) if isinstance(node, COMPREHENSIONS)]
    return "in the line" if any(_calls_the_same(node) for node in nodes) else None


def _calls_the_same(node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> bool:
    """Not one module or object after another: they have weights of their own."""
    each = {name for generator in node.generators for name in names_in(generator.target)}
    element = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    calls = [call for part in element for call in ast.walk(part) if isinstance(call, ast.Call)]
    return any(not reads(call.func, each) and any(reads(part, each) for part in call.args) for call in calls)


def _collected(statement: ast.stmt, others: list[ast.stmt]) -> tuple[set[str], list[ast.expr]]:
    """The names of what takes the results of all passes, and what it takes."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        return names_in(call.func) if called_name(call) == "append" else set(), call.args
    if isinstance(statement, ast.AugAssign):
        return names_in(statement.target), [statement.value]
    if isinstance(statement, ast.Assign):
        if isinstance(target := statement.targets[0], ast.Subscript):
            return names_in(target.value), [statement.value]
        losses = assigned_names(statement)
        if any(reads(call.func, losses) for other in others for call in calls_named(other, "backward")):
            return losses, [statement.value]
    return set(), []
