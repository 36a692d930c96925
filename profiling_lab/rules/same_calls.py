# SPDX-License-Identifier: Apache-2.0
"""Lines of one function that call the same with the same arguments: `self.policy(board)` for each term of a
loss.

The calls are compared by their text, and by the multiplications that they launch, which have to be the same;
by all kernels where there are none. Others may differ: autocast casts a weight in the first call only. An
argument may have got another value in between, and a model other weights: so no line from the first to the
last gives a name in the call a value, and there is neither backward nor a step of an optimizer. Branches are
not one after the other: nearly each step with one of the lines has all of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from profiling_lab.records import dataclass
from profiling_lab.rules.call_sites import CallSite, call_sites, in_the_same_steps
from profiling_lab.rules.call_texts import calls_of
from profiling_lab.rules.expressions import assigned_names
from profiling_lab.rules.kernel_families import MATRIX
from profiling_lab.rules.own_frames import own_functions
from profiling_lab.rules.statements import Statements
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64
from profiling_lab.trace.phases import LinePhase


@dataclass(frozen=True, slots=True)
class SameCall:
    """One call, as its line says it."""

    site: CallSite
    text: str
    names: frozenset[str]


def same_calls(view: View, least_ns: float) -> Iterator[list[SameCall]]:
    """The same call at several lines of a function, in their order; what each launches takes `least_ns`."""
    sites, statements = call_sites(view, least_ns, of_modules=True), Statements(view)
    own = own_functions(view)
    alike: dict[tuple[str, str, str, str, str], list[SameCall]] = {}
    for site in sites:
        for call in calls_of(site, statements.at(site.caller), own):
            text = ast.unparse(call)
            key = (site.caller.file, site.caller.function, site.callee.file, site.callee.function, text)
            names = {n.id for n in ast.walk(call) if isinstance(n, ast.Name)}
            alike.setdefault(key, []).append(SameCall(site, text, frozenset(names)))
    for each in alike.values():
        each.sort(key=lambda call: call.site.caller.line)
        same = [one for one in each if np.array_equal(_kernels(view, one), _kernels(view, each[0]))]
        if (
            len(same) > 1
            and in_the_same_steps(view, [one.site.rows for one in same])
            and not _changes(view, statements, same)
        ):
            yield same


def _kernels(view: View, call: SameCall) -> I64:
    """How often each kernel was launched in forward: those that multiply, or all."""
    rows = call.site.rows
    rows = rows[view.attribution.phase[rows] == Phase.FORWARD]
    multiply = rows[view.kernels_named(MATRIX)[rows]]
    rows = multiply if len(multiply) else rows
    return np.bincount(view.operations.name[rows], minlength=len(view.operations.names))


def _changes(view: View, statements: Statements, calls: list[SameCall]) -> bool:
    """Whether a name in the calls gets a value from the first line on, before the last, or after the first
    an optimizer makes a step, or backward does what weights are changed by.
    """
    first, last = calls[0].site.caller, calls[-1].site.caller
    names = set[str]().union(*(call.names for call in calls))
    if any(assigned_names(each) & names for each in statements.between(first, last)):
        return True
    found = view.attribution
    changing = (found.line_phase == LinePhase.OPTIMIZER) | (found.phase == Phase.BACKWARD)
    change_ns = view.calls.start_ns[found.call[changing & view.has_call]]
    before, behind = _launched(view, calls[0].site.rows), _launched(view, calls[-1].site.rows)
    if not (len(before) and len(behind) and before[0] < behind[0]):
        return True
    at = before[np.searchsorted(before, behind[0]) - 1]
    return bool(((change_ns > at) & (change_ns < behind[0])).any())


def _launched(view: View, rows: I64) -> I64:
    """When the host launched what is not of backward, in order."""
    found = view.attribution
    rows = rows[(found.call[rows] >= 0) & (found.phase[rows] == Phase.FORWARD)]
    return np.sort(view.calls.start_ns[found.call[rows]])
