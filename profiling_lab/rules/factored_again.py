# SPDX-License-Identifier: Apache-2.0
"""Calls such as `torch.linalg.solve(self.matrix, x)` that factorise a matrix which stays: an attribute that
no line changes. What is launched until the last kernel of the factorisation depends on the matrix alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import numpy as np

from profiling_lab.rules.pure_lines import attributes_of, changed_attributes, is_pure, statement_of
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import I64, unique

_FACTORING = r"getrf|getf2|potrf|geqrf|sytrf"
"""LAPACK's names, as cuSOLVER, cuBLAS and MAGMA use them"""
_CALLS = r"\b(linalg\.(solve|inv)(_ex)?|linalg\.(lstsq|(slog)?det)|torch\.(inverse|(log|slog)?det))$"
"""of torch, numpy and scipy: they factorise their first argument"""
REMEDY = (
    "factorise the matrix once, when it is made, and keep the factors (lu_factor and lu_solve, "
    "cholesky and cholesky_solve); a small inverse that is used often can be kept itself"
)


def factored_again(view: View) -> Iterator[tuple[Frame, I64]]:
    """The lines, with the operations that are not needed again once the factors are kept."""
    factoring = view.kernels_named(_FACTORING) & view.has_call & (view.operation_place >= 0)
    changed = changed_attributes(view) if factoring.any() else set()
    for line in unique(view.operation_place[factoring]).tolist():
        place = view.place(line)
        text = view.trace.source_texts.get((place.file, place.line), "") if place else ""
        if place and _keeps_its_matrix(text, changed):
            yield place, _until_factored(view, np.flatnonzero(view.operation_place == line), factoring)


def _keeps_its_matrix(text: str, changed: set[str]) -> bool:
    """Of a line with one such call."""
    statement = statement_of(text)
    nodes = ast.walk(statement) if statement else ()
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    calls = [call for call in calls if re.search(_CALLS, ast.unparse(call.func))]
    if len(calls) != 1 or not calls[0].args:
        return False
    matrix = f"return {ast.unparse(calls[0].args[0])}"
    return is_pure(matrix) and not attributes_of(statement_of(matrix)) & changed


def _until_factored(view: View, rows: I64, factoring: Mask) -> I64:
    """Of what is launched in a step without a wait in between, until the last kernel that factorises."""
    call = view.attribution.call
    rows = rows[call[rows] >= 0]
    start_ns = view.calls.start_ns[call[rows]]
    order = np.argsort(start_ns, kind="stable")
    rows, start_ns = rows[order], start_ns[order]
    begins = np.sort(view.steps.host_start_ns) if view.steps else start_ns[:0]
    ended = np.sort(view.calls.end_ns[view.waits])
    part = np.searchsorted(begins, start_ns, "right") + np.searchsorted(ended, start_ns, "right")
    last = np.full(int(part.max(initial=0)) + 1, -1)
    at = np.flatnonzero(factoring[rows])
    np.maximum.at(last, part[at], at)
    return np.sort(rows[np.arange(len(rows)) <= last[part]])
