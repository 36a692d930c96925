# SPDX-License-Identifier: Apache-2.0
"""Chains of products in an order that makes a larger matrix than needed.

`(q @ k.mT) @ v` makes a number for each pair of rows of `q` and `k`. Where nothing but a product comes
behind, `q @ (k.mT @ v)` gives the same from a matrix as small as a row is long. The recording does not have
the sizes: rows are taken to be more than their elements, as positions of a sequence are more than those of a
head. And where the last factor is a vector, which its kernel's name tells, `a @ (b @ x)` needs no product of
matrices at all.
"""

from __future__ import annotations

import ast

from profiling_lab.rules.call_sites import in_a_row
from profiling_lab.rules.expressions import VIEWS, called_name, products
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import I64

_TRANSPOSING = frozenset({"t", "transpose", "swapaxes", "adjoint"})
_OF_VECTORS = r"gemv|dot_kernel"
OF_PAIRS = "multiply the last two first, q @ (k.mT @ v): that makes no number for each pair of rows"
OF_VECTOR = "multiply by the vector first, a @ (b @ x): two small products instead of one of matrices"
LEFT = 0.1
"""of the products' time: experience"""


def in_a_large_order(view: View, statement: ast.stmt, rows: I64, multiplies: Mask) -> str:
    """What to do; '' where the order is right, or not known to be wrong."""
    chains = [pair for node in products(statement) if (pair := _factors(node)) and _factors(pair[0])]
    if not chains:
        return ""
    if any(_is_transposed(inner[1]) for left, _ in chains if (inner := _factors(left))):
        return OF_PAIRS
    vectors = view.kernels_named(_OF_VECTORS)
    runs = [each[(multiplies | vectors)[each]] for each in in_a_row(view, rows)]
    found = bool(runs) and all(len(each) == 2 and multiplies[each[0]] and vectors[each[1]] for each in runs)
    return OF_VECTOR if found else ""


def _factors(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Of a product of two."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if isinstance(node, ast.Call) and called_name(node) in ("matmul", "mm", "bmm", "mv"):
        of_torch = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "torch"
        if of_torch and len(node.args) == 2:
            return node.args[0], node.args[1]
        if isinstance(node.func, ast.Attribute) and not of_torch and len(node.args) == 1:
            return node.func.value, node.args[0]
    return None


def _is_transposed(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _TRANSPOSING
    return isinstance(node, ast.Attribute) and node.attr in VIEWS - {"real"}
