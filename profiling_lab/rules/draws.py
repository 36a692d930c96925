# SPDX-License-Identifier: Apache-2.0
"""Comprehensions that draw again and again from what is the same: `[net(x) for _ in range(draws)]`.

The call has nothing of the comprehension in its arguments, so until something random happens each pass gives
the same. The kernels tell where that is: all passes launch the same, and the first random one of a pass comes
behind what need not be computed again. An object may change from pass to pass, as an environment or a cache
does. So no line inside gives anything but a name a value, or changes it in place; none reads an attribute
that another line changes; nothing comes from the host or goes there, and nothing is trained.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from profiling_lab.rules.call_sites import CallSite, call_sites, in_a_row
from profiling_lab.rules.call_texts import calls_of
from profiling_lab.rules.own_frames import own_functions
from profiling_lab.rules.pure_lines import (
    attributes_of,
    changed_attributes,
    changes_of,
    statement_of,
    statements_within,
)
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I32, I64
from profiling_lab.trace.operation_classes import OperationClass

RANDOM = r"distribution|random|philox|bernoulli|multinomial|dropout|randperm|curand"
FEWEST = 3
"""passes"""
_LOOPS = (ast.ListComp, ast.GeneratorExp, ast.SetComp)


def draws(view: View, least_ns: float) -> Iterator[tuple[CallSite, I64]]:
    """Such calls, and what all passes but the first compute again."""
    own = own_functions(view)
    for site in call_sites(view, least_ns, of_modules=True):
        if not _is_drawn(site, own):
            continue
        rows = _again(view, site.rows)
        if view.operations.duration_ns[rows].sum() >= least_ns and not _changes(view, site):
            yield site, rows


def _is_drawn(site: CallSite, own: set[str]) -> bool:
    """Whether the text says that nothing of a comprehension goes into the call."""
    statement = statement_of(site.text)
    calls = {ast.unparse(call) for call in calls_of(site, statement, own)}
    for loop in (n for n in ast.walk(statement) if isinstance(n, _LOOPS)) if statement else ():
        bound = {n.id for g in loop.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        inside = [n for n in ast.walk(loop.elt) if isinstance(n, ast.Call) and ast.unparse(n) in calls]
        names = {n.id for call in inside for n in ast.walk(call) if isinstance(n, ast.Name)}
        if inside and not names & bound:
            return True
    return False


def _again(view: View, rows: I64) -> I64:
    """What comes before the first random kernel, in all passes but the first."""
    random = view.kernels_named(RANDOM)
    other = np.isin(view.classes[rows], (OperationClass.HOST_TO_DEVICE, OperationClass.DEVICE_TO_HOST))
    if other.any() or (view.attribution.phase[rows] != Phase.FORWARD).any():
        return rows[:0]
    found = [rows[:0]]
    for each in in_a_row(view, rows):
        length = _period(view.operations.name[each])
        passes = each.reshape(-1, length)
        first = int(random[passes[0]].argmax())  # 0 also if nothing is
        if len(passes) >= FEWEST:
            found.append(passes[1:, :first].flatten())
    return np.concatenate(found)


def _period(names: I32) -> int:
    """The length of the shortest part that all is repetitions of."""
    for length in range(1, len(names) // 2 + 1):
        if len(names) % length == 0 and (names.reshape(-1, length) == names[:length]).all():
            return length
    return len(names)


def _changes(view: View, site: CallSite) -> bool:
    """Whether a line within changes something, or reads what another line changes."""
    statements, changed = statements_within(view, site.caller, site.rows), changed_attributes(view)
    return any(changes_of(each) or attributes_of(each) & changed for each in statements)
