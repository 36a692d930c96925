# SPDX-License-Identifier: Apache-2.0
"""What the text of a line does: calls, names, products, and what is only the same in another form."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

PRODUCTS = frozenset({"matmul", "mm", "bmm", "einsum", "linear", "addmm", "baddbmm", "tensordot"})
_CASTS = "to type type_as float double half bfloat16 long int bool"
_SHAPES = "t transpose permute reshape view flatten unflatten squeeze unsqueeze contiguous detach"
SAME = frozenset(f"{_CASTS} {_SHAPES}".split())
"""methods that give the same values"""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
VIEWS = frozenset({"T", "mT", "H", "mH", "real"})


def calls_named(node: ast.AST, *names: str) -> Iterator[ast.Call]:
    """Calls of functions or methods of these names, whatever they belong to."""
    return (n for n in ast.walk(node) if isinstance(n, ast.Call) and called_name(n) in names)


def called_name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def assigned_names(statement: ast.stmt) -> set[str]:
    """Names that `a = ...` or `a, b = ...` gives a value."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def given_values(statement: ast.stmt) -> set[str]:
    """Names that it gives a value, or changes in place."""
    return assigned_names(statement) | changed_names(statement)


def changed_names(statement: ast.stmt) -> set[str]:
    """Names that it changes in place, by `+=`, `[...] =` or methods such as `add_`."""
    targets = [n.value for n in ast.walk(statement) if _changes(n)]
    targets += [statement.target] if isinstance(statement, ast.AugAssign) else []
    return names_in(*targets)


def _changes(node: ast.AST) -> TypeGuard[ast.Attribute | ast.Subscript]:
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store)
    return isinstance(node, ast.Attribute) and node.attr.endswith("_") and not node.attr.endswith("__")


def names_in(*nodes: ast.AST) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


def reads(node: ast.AST, names: set[str]) -> bool:
    loads = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return any(n.id in names for n in loads)


def products(node: ast.AST) -> Iterator[ast.AST]:
    """Multiplications of matrices."""
    for each in ast.walk(node):
        of_operator = isinstance(each, ast.BinOp) and isinstance(each.op, ast.MatMult)
        if of_operator or (isinstance(each, ast.Call) and called_name(each) in PRODUCTS):
            yield each


def operands(node: ast.AST) -> list[ast.expr]:
    """Of an operator, or the arguments of a call and the object of a method."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if not isinstance(node, ast.Call):
        return []
    return [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]


def unwrapped(node: ast.expr) -> ast.expr:
    """What another dtype, shape or layout is made of: `x` of `x.float().mT`."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAME:
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr in VIEWS:
            node = node.value
        else:
            return node
