# SPDX-License-Identifier: Apache-2.0
"""What a statement, and those that read what it makes, use of the order of a sort."""

from __future__ import annotations

import ast

from profiling_lab.rules.expressions import assigned_names, calls_named, reads
from profiling_lab.rules.statements import Statements

LEFT = {"max": 0.1, "compare": 0.1, "topk": 0.33}
"""what is used, and which part of a sort's time what gives only that takes"""
_PARTS = ("values", "indices")


def use_of_order(statements: Statements, number: int, statement: ast.stmt) -> str:
    """What is used of the order that a line makes; '' if all of it, or if it is not known."""
    call = next(calls_named(statement, "sort", "argsort"), None)
    if call is None:
        return ""
    is_order = next(calls_named(call, "argsort"), None) is call
    if part := _part(statement, call, is_order):
        return part
    if not isinstance(statement, ast.Assign):
        return ""
    value, several = statement.value, isinstance(statement.targets[0], ast.Tuple)
    taken = isinstance(value, ast.Attribute) and value.attr in _PARTS and value.value is call
    if not (taken or (value is call and (is_order or several))):
        return ""
    uses = {
        _of_name(statements.of[line], name)
        for name in assigned_names(statement)
        for line in statements.reading(number, {name})
    }
    return _most(uses)


def _of_name(statement: ast.stmt, name: str) -> str:
    nodes = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and reads(n, {name})]
    return _most({_part(statement, node, True) for node in nodes})


def _most(uses: set[str]) -> str:
    return max(uses, key=lambda use: LEFT[use]) if uses and "" not in uses else ""


def _part(statement: ast.stmt, value: ast.expr, is_order: bool) -> str:
    """What becomes of a value in a statement. is_order: it is a tensor, and not the two that a sort gives."""
    above = {id(child): node for node in ast.walk(statement) for child in ast.iter_child_nodes(node)}
    node: ast.AST = value
    while (outer := above.get(id(node))) is not None:
        if isinstance(outer, ast.Attribute) and outer.attr in _PARTS:
            is_order = True
        elif isinstance(outer, ast.Subscript) and outer.value is node:
            if is_order:
                return _of_index(outer.slice)
            is_order = True
        else:
            equal = isinstance(outer, ast.Compare) and all(isinstance(op, ast.Eq) for op in outer.ops)
            return "compare" if equal else ""
        node = outer
    return ""


def _of_index(index: ast.expr) -> str:
    """`[:, 0]` is the largest or the smallest, `[:k]` the first ones; '' if it is all, or any."""
    if not isinstance(index, ast.Tuple):
        return _of_part(index, isinstance(index, ast.Name))
    uses = [_of_part(part, False) for part in index.elts]
    return next((use for use in ("max", "topk") if use in uses), "")


def _of_part(part: ast.expr, may_be_tensor: bool) -> str:
    if isinstance(part, ast.Slice):
        first = part.upper is not None and not _from_the_end(part.upper)
        last = part.lower is not None and _from_the_end(part.lower)
        return "topk" if first or last else ""
    try:
        number = ast.literal_eval(part)
    except ValueError:
        return "" if may_be_tensor or isinstance(part, ast.Compare) else "topk"
    return "" if number in (Ellipsis, None) else "max" if number in (0, -1) else "topk"


def _from_the_end(bound: ast.expr) -> bool:
    return isinstance(bound, ast.UnaryOp) and isinstance(bound.op, ast.USub)
