# SPDX-License-Identifier: Apache-2.0
"""Statements that join tensors and give what they joined to a layer: which parts of it are copies."""

from __future__ import annotations

import ast

import numpy as np

from profiling_lab.records import dataclass
from profiling_lab.rules.call_sites import in_a_row
from profiling_lab.rules.expressions import assigned_names, called_name, operands, products, unwrapped
from profiling_lab.rules.statements import Statements
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64, unique

_JOINS, _COPIES = (
    frozenset({"cat", "concat", "concatenate"}),
    frozenset({"expand", "expand_as", "repeat", "tile"}),
)
_OTHERS = frozenset({"append", "add", "print", "len", "list", "tuple", "stack", "norm", "sum", "mean"})
"""calls that are no layer"""


@dataclass(frozen=True, slots=True)
class Joined:
    line: int
    """number of the one that joins"""
    parts: int
    copies: int
    """of the parts, as the text says"""


def joined_for(statements: Statements, number: int) -> Joined | None:
    """What a line gives to a layer: joined in the line, or at the one that gave the argument its value. Along
    the last dimension: along another it would be more positions, or rows.
    """
    statement = statements.of[number]
    layers = [node for node in ast.walk(statement) if isinstance(node, ast.Call) and _may_be_layer(node)]
    for node in (*layers, *products(statement)):
        for given in operands(node):
            line, join = number, unwrapped(given)
            if isinstance(join, ast.Name):
                giving = statements.giving(number, join.id)
                line = next(iter(giving), number)
                one = giving.get(line) if len(giving) == 1 else None
                join = unwrapped(one.value) if isinstance(one, ast.Assign) else join
            if parts := _parts(join):
                dims = [_dimensions(statements, line, part) for part in parts]
                last = _dim(join) in ("-1", *(str(each - 1) for each in dims if each))
                return Joined(line, len(parts), sum(each is not None for each in dims)) if last else None
    return None


def _parts(join: ast.expr) -> list[ast.expr]:
    """Of what joins several."""
    if not (isinstance(join, ast.Call) and called_name(join) in _JOINS and join.args):
        return []
    return join.args[0].elts if isinstance(join.args[0], (ast.Tuple, ast.List)) else []


def _dim(join: ast.expr) -> str:
    """Along which it joins, '' not said."""
    if not isinstance(join, ast.Call):
        return ""
    dim = join.args[1] if len(join.args) > 1 else None
    dim = next((each.value for each in join.keywords if each.arg in ("dim", "axis")), dim)
    return ast.unparse(dim) if dim is not None else ""


def _may_be_layer(call: ast.Call) -> bool:
    name = called_name(call)
    return (
        len(call.args) == 1
        and name not in _JOINS | _COPIES | _OTHERS
        and not isinstance(call.func, ast.Lambda)
    )


def _dimensions(statements: Statements, number: int, part: ast.expr) -> int | None:
    """How many a copy has, 0 if the text does not say it; None if it is no copy."""
    value: ast.expr = unwrapped(part)
    if isinstance(value, ast.Name):
        giving = [*statements.giving(number, value.id).values()]
        one = giving[0] if len(giving) == 1 else None
        if not isinstance(one, ast.Assign) or assigned_names(one) != {value.id}:
            return None
        value = unwrapped(one.value)
    if not (isinstance(value, ast.Call) and called_name(value) in _COPIES):
        return None
    told = called_name(value) != "expand_as" and not any(isinstance(each, ast.Starred) for each in value.args)
    return len(value.args) if told and len(value.args) > 1 else 0


def first_products(view: View, rows: I64, products: Mask) -> I64:
    """The first product of each time that a line runs; of backward all, if it has no other."""
    forward = rows[view.attribution.phase[rows] == Phase.FORWARD]
    runs = [each[products[each]] for each in in_a_row(view, forward)]
    first = [each[:1] for each in runs if len(each)]
    if all(len(each) <= 1 for each in runs):
        first.append(rows[products[rows] & (view.attribution.phase[rows] == Phase.BACKWARD)])
    return np.concatenate([rows[:0], *first])


def copies_in_backward(view: View, rows: I64, spreads: Mask) -> int:
    """Over the copies of how many parts backward sums up, each time that a line runs."""
    nodes = unique(view.calls.node_sequence[view.attribution.call[rows[spreads[rows]]]])
    times = sum(1 for _ in in_a_row(view, rows[view.attribution.phase[rows] == Phase.FORWARD]))
    return round(len(nodes) / max(times, 1))
