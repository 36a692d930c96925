# SPDX-License-Identifier: Apache-2.0
"""Calls of a network whose rows are copies: `prompts = prompts.repeat_interleave(answers, dim=0)` and then
`self.model(prompts)`. Until something random distinguishes them, all copies of a row give the same. So the
network can be given each row once, and what it makes be repeated.

The text tells which name, or which argument, is a copy of rows: `repeat_interleave` along the first
dimension, or `repeat(n, 1, ...)`. What else the call gets must not distinguish rows: copies made by the same
call, attributes, and constants, but no other name. Where the number of copies is no number in the text, four
are taken: then what is saved is right within a factor of 1.5 from two on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import numpy as np

from profiling_lab.rules.call_sites import CallSite, call_sites, in_a_row
from profiling_lab.rules.call_texts import calls_of
from profiling_lab.rules.draws import RANDOM
from profiling_lab.rules.expressions import given_values, names_in, unwrapped
from profiling_lab.rules.kernel_families import MATRIX
from profiling_lab.rules.own_frames import own_functions
from profiling_lab.rules.statements import Statements
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64

COPIES = 4
"""of a row, where the text has no number"""
_BY_COUNTS = r"repeat_?interleave|compute_cuda_kernel"
"""the kernel for a tensor of counts: rows are repeated so that they come to what belongs to each"""


def repeated_rows(view: View, least_ns: float) -> Iterator[tuple[CallSite, I64, float]]:
    """Such calls, what they launch until something random, and the part of it that is left."""
    own, statements = own_functions(view), Statements(view)
    sites = call_sites(view, least_ns, of_modules=True)
    for site in sites:
        for call in calls_of(site, statements.at(site.caller), own)[:1]:
            if copies := _copies(view, statements, site, call):
                rows = _until_random(view, site.rows)
                took_ns = view.operations.duration_ns[rows]
                if took_ns.sum() >= least_ns and view.kernels_named(MATRIX)[rows].any():
                    yield site, rows, 1 / copies


def _copies(view: View, statements: Statements, site: CallSite, call: ast.Call) -> int:
    """How often each row comes; 0 where rows may differ."""
    found = set[tuple[str, int]]()
    for given in (*call.args, *(each.value for each in call.keywords)):
        repeated = _repeated(given)
        if not repeated and isinstance(given, ast.Name):
            repeated = _of_name(view, statements, site, given.id)
        if repeated:
            found.add(repeated)
        elif names_in(given) - {"self", "cls"}:
            return 0
    return next(iter(found))[1] if len(found) == 1 else 0


def _of_name(view: View, statements: Statements, site: CallSite, name: str) -> tuple[str, int] | None:
    """What the last line before the call that gives a name its value says."""
    function, last = (site.caller.file, site.caller.function), None
    for number, statement in statements.of.items():
        place = view.place(number)
        if place is None or (place.file, place.function) != function or place.line >= site.caller.line:
            continue
        if name in given_values(statement) and (last is None or place.line > last[0]):
            last = place.line, number, statement
    if last is None or not isinstance(last[2], ast.Assign):
        return None
    rows = statements.rows(last[1])
    return None if view.kernels_named(_BY_COUNTS)[rows].any() else _repeated(last[2].value)


def _repeated(node: ast.expr) -> tuple[str, int] | None:
    """How rows are repeated, and how often."""
    node = unwrapped(node)
    text = ast.unparse(node)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    interleaved = re.search(r"\brepeat_interleave\((?:[^()]*, )?([^(),]+), (?:dim=)?0\)$", text)
    tiled = re.search(r"\.repeat\(([^(),]+)(?:, 1)+\)$", text)
    if not (match := interleaved or tiled) or match[1] == "1":
        return None
    how = f"{node.func.attr} {match[1]}"
    return how, int(match[1]) if match[1].isdigit() else COPIES


def _until_random(view: View, rows: I64) -> I64:
    """Of each call what comes before its first random kernel."""
    random, found = view.kernels_named(RANDOM), [rows[:0]]
    for each in in_a_row(view, rows[view.attribution.phase[rows] == Phase.FORWARD]):
        found.append(each[~np.logical_or.accumulate(random[each])])
    return np.concatenate(found)
