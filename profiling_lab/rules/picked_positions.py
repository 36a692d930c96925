# SPDX-License-Identifier: Apache-2.0
"""Lines whose result is used at the last position only: `self.head(x)[:, -1]`, a name that all lines which
read it index so, or what a function returns, where all lines that call it do.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import numpy as np

from profiling_lab.rules.call_sites import CallSite, call_sites, in_a_row
from profiling_lab.rules.call_texts import calls_of
from profiling_lab.rules.expressions import SAME, reads, unwrapped
from profiling_lab.rules.kernel_families import CONVOLUTION, FUSED_ATTENTION, MATRIX, REARRANGING
from profiling_lab.rules.own_frames import own_functions
from profiling_lab.rules.small_grids import blocks_of
from profiling_lab.rules.statements import Statements
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace import Frame
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64

_LITTLE_FRAC = 0.1
_NORMS = r"layer_?norm|rms_?norm"
_FIELDS = frozenset({"logits", "last_hidden_state"})
"""of the outputs of models"""


def layers_of_the_last(view: View, many: float, least_ns: float) -> Iterator[tuple[Frame, I64]]:
    """Lines that are one layer, given at least this many positions, and what they launch: at least this."""
    products = view.kernels_named(MATRIX) & ~view.kernels_named(f"{CONVOLUTION}|{FUSED_ATTENTION}")
    positions = _positions(view)
    for place, rows in _used_at_the_last(view, products, least_ns):
        if _is_one_layer(view, rows, products) and np.median(positions[rows[products[rows]]]) >= many:
            yield place, rows


def _used_at_the_last(view: View, products: Mask, least_ns: float) -> Iterator[tuple[Frame, I64]]:
    """Lines with products, and what they launch."""
    statements, own, duration = Statements(view), own_functions(view), view.operations.duration_ns
    sites: list[CallSite] | None = None  # of calls that take a little, too: they may use all
    for number, statement in statements.of.items():
        rows, place = statements.rows(number), view.place(number)
        if place is None or not products[rows].any() or duration[rows].sum() < least_ns:
            continue
        if _is_used_so(statements, place, statement, _makes_all(statement)):
            yield place, rows
        elif isinstance(statement, ast.Return) and statement.value is not None:
            sites = call_sites(view, _LITTLE_FRAC * least_ns, of_modules=True) if sites is None else sites
            of_function = [site for site in sites if _calls(site, place)]
            rows = rows[np.isin(rows, np.concatenate([rows[:0], *(site.rows for site in of_function)]))]
            used_so = all(_site_is(statements, site, own) for site in of_function)
            if used_so and of_function and duration[rows].sum() >= least_ns:
                yield place, rows


def _positions(view: View) -> I64:
    """Per operation the blocks of the last norm that its thread launched before; 0 without one."""
    norms, blocks, found = view.kernels_named(_NORMS), blocks_of(view), np.zeros(len(view.operations))
    known = np.flatnonzero(view.has_call)
    call = view.attribution.call[known]
    known = known[np.lexsort((view.calls.start_ns[call], view.calls.thread[call]))]
    last = np.maximum.accumulate(np.where(norms[known], np.arange(len(known)), -1))
    before = np.append(np.nan_to_num(blocks[known], posinf=0), 0)[last]
    found[known] = before
    return found.astype(np.int64)


def _is_one_layer(view: View, rows: I64, products: Mask) -> bool:
    """Whether the line multiplies once each time, and otherwise casts or moves."""
    forward = rows[view.attribution.phase[rows] == Phase.FORWARD]
    other = view.kernels & ~products & ~view.kernels_named(REARRANGING + r"|elementwise|" + _NORMS)
    runs = [int(products[each].sum()) for each in in_a_row(view, forward)]
    return bool(runs) and max(runs) == 1 and not other[forward].any()


def _calls(site: CallSite, place: Frame) -> bool:
    return (site.callee.file, site.callee.function) == (place.file, place.function)


def _site_is(statements: Statements, site: CallSite, own: set[str]) -> bool:
    statement = statements.at(site.caller)
    calls = calls_of(site, statement, own)
    if statement is None or not calls:
        return False
    return _is_used_so(statements, site.caller, statement, lambda node: any(node is call for call in calls))


def _makes_all(statement: ast.stmt) -> Callable[[ast.AST], bool]:
    """The outermost call of a line: what it indexes, or gives a name."""
    value = (
        unwrapped(statement.value)
        if isinstance(statement, (ast.Assign, ast.Return)) and statement.value
        else None
    )
    while isinstance(value, ast.Subscript):
        value = unwrapped(value.value)
    return lambda node: node is value and isinstance(node, ast.Call)


def _is_used_so(
    statements: Statements, place: Frame, statement: ast.stmt, is_it: Callable[[ast.AST], bool]
) -> bool:
    if _picks(statement, is_it):
        return True
    if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
        return False
    value = unwrapped(statement.value)
    value = value.value if isinstance(value, ast.Attribute) and value.attr in _FIELDS else value
    if not is_it(value):
        return False
    name = statement.targets[0].id
    readers = [each for each in statements.of_function(place) if reads(each, {name})]
    return bool(readers) and all(_picks(each, lambda node: _reads(node, name)) for each in readers)


def _reads(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _picks(statement: ast.stmt, is_it: Callable[[ast.AST], bool]) -> bool:
    """Whether the last position is taken of it, wherever it is in the statement."""
    above = {id(child): node for node in ast.walk(statement) for child in ast.iter_child_nodes(node)}
    found = [node for node in ast.walk(statement) if is_it(node)]
    return bool(found) and all(_is_indexed(node, above) for node in found)


def _is_indexed(node: ast.AST, above: dict[int, ast.AST]) -> bool:
    while (outer := above.get(id(node))) is not None:
        if isinstance(outer, ast.Subscript) and outer.value is node:
            return _is_last(outer.slice)
        same = isinstance(outer, ast.Attribute) and outer.attr in SAME | _FIELDS
        if not (same or (isinstance(outer, ast.Call) and outer.func is node)):
            return False
        node = outer
    return False


def _is_last(index: ast.expr) -> bool:
    """`[:, -1]`, `[:, -1, :]`, `[:, -1:]`, `[..., -1, :]`; `[:, -1]` of two dimensions looks the same."""
    text = ast.unparse(index).strip("()")
    return text in (":, -1", ":, -1, :", ":, -1:", ":, -1:, :", "..., -1, :")
