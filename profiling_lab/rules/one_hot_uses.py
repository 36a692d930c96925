# SPDX-License-Identifier: Apache-2.0
"""Statements that make rows with a single one, and those that use them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from profiling_lab.rules.expressions import assigned_names, called_name, operands, products, unwrapped
from profiling_lab.rules.kernel_families import MATRIX, MEMORY_BOUND
from profiling_lab.rules.statements import Statements

_SUMS = frozenset({"sum", "mean"})


def makes_one_hot(statement: ast.stmt) -> bool:
    return any(_is_one_hot(node) for node in ast.walk(statement))


def uses_of(statements: Statements, number: int, statement: ast.stmt) -> dict[int, str]:
    """Lines that use what a line makes, each with the pattern of the kernels that do: those of a product, or
    of an elementwise product that is summed; '' for something else.
    """
    if own := _family(statement, _is_one_hot):
        return {number: own}
    if not (isinstance(statement, ast.Assign) and _is_one_hot(unwrapped(statement.value))):
        return {}
    names = assigned_names(statement)
    lines = [line for line in statements.reading(number, names) if line != number]
    return {
        line: _family(statements.of[line], lambda node: isinstance(node, ast.Name) and node.id in names)
        for line in lines
    }


def _is_one_hot(node: ast.AST) -> bool:
    """`one_hot(...)`, or rows of `eye(...)`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Call) and called_name(node.value) == "eye"
    return isinstance(node, ast.Call) and called_name(node) == "one_hot"


def _family(statement: ast.stmt, picks: Callable[[ast.AST], bool]) -> str:
    def of_any(nodes: Iterable[ast.AST]) -> bool:
        return any(picks(unwrapped(part)) for node in nodes for part in operands(node))

    if of_any(products(statement)):
        return MATRIX
    calls = (n for n in ast.walk(statement) if isinstance(n, ast.Call) and called_name(n) in _SUMS)
    summed = (part for call in calls for part in ast.walk(call))
    times = (n for n in summed if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult))
    return MEMORY_BOUND if of_any(times) else ""
