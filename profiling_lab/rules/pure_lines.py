# SPDX-License-Identifier: Apache-2.0
"""Lines that make something of their object's attributes and of constants alone, such as
`return self.encode(self.prompts)`: the same comes of them while these stay.
"""

from __future__ import annotations

import ast
import builtins

import numpy as np

from profiling_lab.rules.own_frames import frames_around
from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import I64, unique

_OBJECTS = {"self", "cls"}
_MODULES = {"torch", "F", "nn", "np", "numpy", "math"}


def pure_lines(view: View, least_ns: float) -> list[tuple[Frame, I64]]:
    """Those in which operations of at least `least_ns` were launched, with what was launched within, also in
    the functions that the line calls; where the text of the line is known.
    """
    stacks, own_row, found = view.trace.stacks, view.own_row, view.attribution.stack
    outer = own_row[stacks.parent]
    took_ns = np.bincount(found, weights=view.operations.duration_ns, minlength=len(stacks))
    within: dict[tuple[str, int], list[int]] = {}
    frames: dict[tuple[str, int], Frame] = {}
    for stack in np.flatnonzero(took_ns).tolist():
        row = int(own_row[stack])
        while row > 0:  # from the inside out, so that inner lines come first
            frame = stacks.frames[stacks.frame[row]]
            key = frame.file, frame.line
            frames[key], row = frame, int(outer[row])
            within.setdefault(key, []).append(stack)
    texts = view.trace.source_texts
    lines = [key for key, mine in within.items() if took_ns[unique(np.array(mine))].sum() >= least_ns]
    pure = [key for key in lines if is_pure(texts.get(key, ""))]
    return [(frames[key], np.flatnonzero(np.isin(found, within[key]))) for key in pure]


def statements_within(view: View, place: Frame, rows: I64) -> list[ast.stmt]:
    """Those of the lines that launched one of these operations, within a call from `place`."""
    texts, lines = view.trace.source_texts, set[tuple[str, int]]()
    for stack in unique(view.attribution.stack[rows]).tolist():
        for frame in frames_around(view, int(view.own_row[stack])):
            lines.add((frame.file, frame.line))
            if (frame.file, frame.line) == (place.file, place.line):
                break
    parsed = (statement_of(texts.get(line, "")) for line in lines)
    return [statement for statement in parsed if statement]


def reads_what_changes(view: View, place: Frame, rows: I64, changed: set[str]) -> bool:
    """Whether one of these lines reads an attribute that is among `changed`."""
    return any(attributes_of(statement) & changed for statement in statements_within(view, place, rows))


def changed_attributes(view: View) -> set[str]:
    """Names of attributes that lines with operations, or lines that call these, assign or change in place."""
    stacks, outer = view.trace.stacks, view.own_row[view.trace.stacks.parent]
    row, frames = unique(view.own_row[view.attribution.stack]), set[Frame]()
    while len(row := row[row > 0]):
        frames.update(stacks.frames[frame] for frame in stacks.frame[row].tolist())
        row = unique(outer[row])
    texts = view.trace.source_texts
    return set().union(*(_changed(statement_of(texts.get((f.file, f.line), ""))) for f in frames))


def is_pure(text: str) -> bool:
    """Of a line that returns or assigns something. The text of a statement of several lines is not whole, so
    it is none.
    """
    statement = statement_of(text)
    if not isinstance(statement, (ast.Return, ast.Assign)) or statement.value is None:
        return False
    nodes = list(ast.walk(statement.value))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    read = names - _called(nodes) - _bound(nodes) - _MODULES - set(dir(builtins))
    others = {name for name in read - _OBJECTS if not name.isupper()}
    return bool(names & _OBJECTS) and not (others or _changed(statement) & attributes_of(statement))


def statement_of(text: str) -> ast.stmt | None:
    try:
        (statement,) = ast.parse(text.strip()).body
    except (SyntaxError, ValueError):
        return None
    return statement


def attributes_of(statement: ast.stmt | None) -> set[str]:
    """Names of attributes that are read."""
    nodes = ast.walk(statement) if statement else ()
    return {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}


def changes_of(statement: ast.stmt | None) -> list[ast.expr]:
    """What gets a new value, or new elements, and is no name: by `=`, `[...] =`, and methods such as `add_`,
    also of names.
    """
    changed = list[ast.expr]()
    for node in ast.walk(statement) if statement else ():
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            changed.append(node)
        elif isinstance(node, ast.Attribute) and node.attr.endswith("_") and not node.attr.endswith("__"):
            changed.append(node.value)
    return changed


def _changed(statement: ast.stmt | None) -> set[str]:
    """Names of such attributes."""
    found = set[str]()
    for part in changes_of(statement):
        while isinstance(part, ast.Subscript):
            part = part.value
        found |= {part.attr} if isinstance(part, ast.Attribute) else set()
    return found


def _called(nodes: list[ast.AST]) -> set[str]:
    return {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def _bound(nodes: list[ast.AST]) -> set[str]:
    """Names that the expression gives a value itself."""
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}
