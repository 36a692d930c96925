# SPDX-License-Identifier: Apache-2.0
"""Lines that make something of shapes alone, such as a causal mask, positions or angles:
`mask = torch.ones(length, length, device=x.device).tril()`. It is the same while the shapes are.

What torch makes of sizes (`arange`, `ones`, `eye`, ...) depends on nothing else, and so do lines of the same
function that read only that, constants, and attributes of their object. A tensor that is only filled is left
out: it is there to be written to.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

import numpy as np

from profiling_lab.rules.expressions import (
    SAME,
    assigned_names,
    called_name,
    changed_names,
    given_values,
    unwrapped,
)
from profiling_lab.rules.statements import Statements
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64

_FILLING = "zeros ones full empty zeros_like ones_like full_like new_zeros new_ones new_full"
_MAKING = "arange linspace logspace eye tril_indices triu_indices hann_window"
_FILLS, _MAKES = frozenset(_FILLING.split()), frozenset(f"{_FILLING} {_MAKING}".split())
_OF_SHAPES = frozenset({"shape", "device", "dtype", "ndim", "size", "dim", "numel", "len"})
_SHAPING = frozenset(
    f"{' '.join(SAME)} expand repeat narrow roll flip repeat_interleave tril triu broadcast_to".split()
)
"""their arguments are numbers"""
_KNOWN = {"self", "cls", "torch", "F", "math", "np", "device", "dtype", *dir(builtins)}


def made_of_shapes(view: View) -> Iterator[I64]:
    """What such lines launch, by function."""
    statements, functions = Statements(view), dict[int, list[int]]()
    for number in statements.of:
        functions.setdefault(int(view.function_of_line[number]), []).append(number)
    for lines in functions.values():
        lines.sort(key=lambda number: at.line if (at := view.place(number)) else 0)
        known = {number: statements.of[number] for number in lines}
        pure = _pure(known)
        if any(not _only_filled(known[number]) for number in pure):
            yield np.concatenate([statements.rows(number) for number in pure])


def _pure(known: dict[int, ast.stmt]) -> list[int]:
    """Of a function's lines, in their order, those that no line changes. A name is made of shapes where all
    lines that give it a value are.
    """
    others = set[str]()
    while True:
        names, made, found = set[str](), list[int](), set(others)
        for number, statement in known.items():
            if _is_made(statement, names - others):
                made.append(number)
                names |= assigned_names(statement)
            else:
                found |= given_values(statement)
        if found == others:
            changed = set[str]().union(*(changed_names(each) for each in known.values()))
            return [number for number in made if not assigned_names(known[number]) & changed]
        others = found


def _is_made(statement: ast.stmt, names: set[str]) -> bool:
    if not isinstance(statement, (ast.Assign, ast.Return)) or statement.value is None:
        return False
    if isinstance(statement, ast.Assign) and not all(
        isinstance(each, ast.Name) for each in statement.targets
    ):
        return False
    nodes = list(ast.walk(statement.value))
    makes = any(isinstance(node, ast.Call) and called_name(node) in _MAKES for node in nodes)
    reads = any(isinstance(node, ast.Name) and node.id in names for node in nodes)
    return (makes or reads) and _depends_on_shapes(statement.value, names)


def _depends_on_shapes(node: ast.expr, names: set[str]) -> bool:
    def all_do(nodes: list[ast.expr]) -> bool:
        return all(_depends_on_shapes(each, names) for each in nodes)

    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name in names or name in _KNOWN or name.isupper()
        case ast.Attribute(value=value, attr=attribute):
            return attribute in _OF_SHAPES or _depends_on_shapes(value, names)
        case ast.Call(func=function, args=given, keywords=keywords):
            name, of = called_name(node), [function.value] if isinstance(function, ast.Attribute) else []
            if name in _OF_SHAPES:
                return True
            if name in _MAKES:
                return _is_of_sizes(name, given, keywords)
            if name in _SHAPING:
                return all_do(of) and all_do(given[: int(_is_torch(of))])
            rest = [each.value for each in keywords if each.arg not in ("device", "dtype")]
            return (bool(of) or name in dir(builtins)) and all_do([*of, *given, *rest])
        case ast.Subscript(value=value, slice=index):
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            return all_do([value, *(part for part in parts if not isinstance(part, ast.Slice))])
        case ast.BinOp(left=left, right=right):
            return all_do([left, right])
        case ast.Compare(left=left, comparators=others):
            return all_do([left, *others])
        case ast.UnaryOp(operand=operand):
            return _depends_on_shapes(operand, names)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all_do(parts)
    return False


def _is_of_sizes(name: str, given: list[ast.expr], keywords: list[ast.keyword]) -> bool:
    """Not of a moment or a place, as `full(size, moment)` and `arange(at, at + length)` are."""
    values = [each.value for each in keywords if each.arg in ("fill_value", "start", "end")]
    if "full" in name:
        values += given[1:2]
    elif len(given) > 1 and name in ("arange", "linspace", "logspace"):
        values += given[:2]
    return all(_depends_on_shapes(value, set()) for value in values)


def _is_torch(of: list[ast.expr]) -> bool:
    return bool(of) and ast.unparse(of[0]) == "torch"


def _only_filled(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, (ast.Assign, ast.Return)) else None
    value = unwrapped(value) if value else None
    return isinstance(value, ast.Call) and called_name(value) in _FILLS
