# SPDX-License-Identifier: Apache-2.0
"""One tensor that is sorted several times: for each of several quantiles, in each pass of a comprehension or
at several lines. All of them are of one order, and `quantile` takes all levels at once.

The calls are compared by the text of what they sort. Of several lines none from the first to the last gives
it a value or changes it in place, and nearly each step with one of the lines has all of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from profiling_lab.records import dataclass
from profiling_lab.rules.call_sites import in_a_row, in_the_same_steps
from profiling_lab.rules.expressions import (
    COMPREHENSIONS,
    called_name,
    calls_named,
    given_values,
    names_in,
    unwrapped,
)
from profiling_lab.rules.statements import Statements
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64

_DIM = {"quantile": 1, "nanquantile": 1, "sort": 0, "argsort": 0, "msort": 0}
"""what sorts, and after what it sorts the place of `dim` among the arguments"""


@dataclass(frozen=True, slots=True)
class SortedAgain:
    line: int
    """number of the first one"""
    rows: I64
    left: float
    """of these, if it is sorted once"""
    times: int
    """that it is sorted"""


def sorted_again(view: View, statements: Statements, lines: list[int]) -> Iterator[SortedAgain]:
    """lines: numbers of those that sort."""
    alike: dict[tuple[int, str, str], list[int]] = {}
    for number in lines:
        statement = statements.of[number]
        calls = [*calls_named(statement, *_DIM)]
        if len(calls) != 1 or (sorts := _what(calls[0])) is None:
            continue
        what, dim = sorts
        if _in_a_loop_over_others(statement, calls[0], what):
            rows = statements.rows(number)
            if (times := _times(view, rows)) > 1:
                yield SortedAgain(number, rows, 1 / times, times)
        else:
            key = int(view.function_of_line[number]), ast.unparse(what), dim
            alike.setdefault(key, []).append(number)
    for (_, text, _), same in alike.items():
        several = [statements.rows(number) for number in same]
        if len(same) > 1 and in_the_same_steps(view, several) and not _changes(view, statements, same, text):
            several.sort(key=lambda each: -int(view.operations.duration_ns[each].sum()))
            yield SortedAgain(same[0], np.concatenate(several[1:]), 0.0, len(same))


def _what(call: ast.Call) -> tuple[ast.expr, str] | None:
    """What a call sorts, and along which dimension."""
    function, rest = call.func, list(call.args)
    of_torch = isinstance(function, ast.Attribute) and ast.unparse(function.value) == "torch"
    what = function.value if isinstance(function, ast.Attribute) and not of_torch else None
    if what is None:
        if not rest:
            return None
        what = rest.pop(0)
    place = _DIM[called_name(call)]
    dim = rest[place] if place < len(rest) else None
    dim = next((each.value for each in call.keywords if each.arg == "dim"), dim)
    return unwrapped(what), ast.unparse(dim) if dim else ""


def _in_a_loop_over_others(statement: ast.stmt, call: ast.Call, what: ast.expr) -> bool:
    """Whether each pass of a comprehension sorts the same."""
    for loop in (node for node in ast.walk(statement) if isinstance(node, COMPREHENSIONS)):
        sources = [each.iter for each in loop.generators]
        inside = any(node is call for node in ast.walk(loop))
        if inside and not any(node is call for source in sources for node in ast.walk(source)):
            return not names_in(what) & names_in(*(each.target for each in loop.generators))
    return False


def _times(view: View, rows: I64) -> int:
    """How often a line does the same before its thread launches something else: what divides the number of
    launches of each of its kernels.
    """
    counts = (np.bincount(view.operations.name[each]) for each in in_a_row(view, rows))
    times = [int(np.gcd.reduce(count[count > 0])) for count in counts]
    return int(np.median(times)) if times else 1


def _changes(view: View, statements: Statements, lines: list[int], what: str) -> bool:
    """Whether what the lines sort may be something else at the last one."""
    places = sorted((at for number in lines if (at := view.place(number))), key=lambda at: at.line)
    names = names_in(ast.parse(what))
    return any(given_values(each) & names for each in statements.between(places[0], places[-1]))
