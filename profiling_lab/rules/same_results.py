# SPDX-License-Identifier: Apache-2.0
"""Methods without arguments and lines of them that compute the same again: what they return depends on their
object alone.

The recording has the text of the lines, so `x.f()` and `x.f` are known, and lines that read nothing but
attributes of `self` and constants. These give the same result as before if nothing has changed what they
read. That is likely where they launch the same kernels in each step, none of them random, copy nothing from
or to the host, and are not trained through; or where one function calls a method at several lines, and the
same kernels come of each. A call whose result is not used is there to change something.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving, fewer, shorter
from profiling_lab.records import dataclass, replace
from profiling_lab.rules.call_sites import CallSite, call_sites
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.draws import RANDOM, draws
from profiling_lab.rules.factored_again import REMEDY as OF_FACTORS
from profiling_lab.rules.factored_again import factored_again
from profiling_lab.rules.finding import Finding, ms, percent
from profiling_lab.rules.made_of_shapes import made_of_shapes
from profiling_lab.rules.pure_lines import changed_attributes, pure_lines, reads_what_changes
from profiling_lab.rules.repeated_rows import repeated_rows
from profiling_lab.rules.same_calls import same_calls
from profiling_lab.rules.small_grids import blocks_of
from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64, numbered, unique
from profiling_lab.trace.operation_classes import OperationClass
from profiling_lab.trace.phases import LinePhase

OF_DRAWS = (
    "compute what is not random once, before the draws, and give its result to the part that is: "
    "seen = net.body(x); [net.head(seen) for _ in range(draws)]"
)
OF_COPIES = (
    "give it each row once, and repeat what it makes: repeat_interleave(n, dim=0) behind the call, also of "
    "keys and values that it keeps"
)
FEWEST_STEPS = 3
MOSTLY_FRAC = 0.9
REMEDY = (
    "keep the result while what it is made of does not change: compute it before the loop, or when something "
    "changes; pass it on to where it is needed again"
)


@dataclass(frozen=True, slots=True)
class SameResult:
    """What is computed again."""

    place: Frame
    """where it can be kept"""
    why: str
    rows: I64
    """operations that would not be"""
    remedy: str = REMEDY
    left: float = 0.0
    """of them, with their launches where nothing is left"""


def of_methods(view: View, least_ns: float) -> list[Finding]:
    """The largest first, none of the operations in two of them."""
    sites = [site for site in call_sites(view, least_ns) if site.without_arguments]
    sites = [site for site in sites if not (site.is_statement or site.is_entered)]
    sites.sort(key=lambda site: -_took_ns(view, site.rows))
    found = [*_of_all_steps(view, sites, least_ns), *_of_several_lines(view, sites)]
    found += _of_same_calls(view, least_ns)
    found += [*_of_draws(view, least_ns), *_of_factors(view, least_ns), *_of_copies(view, least_ns)]
    found += _of_shapes(view, least_ns)
    taken, findings = np.zeros(len(view.operations), dtype=bool), []
    for result in found:
        if not taken[result.rows].any():
            taken[result.rows] = True
            findings.append(_finding(view, result))
    return findings


def _finding(view: View, result: SameResult) -> Finding:
    duration, call = view.operations.duration_ns[result.rows], view.attribution.call[result.rows]
    waits, total_ns = view.waits_at_once(call[call >= 0]), int(duration.sum())
    saving = fewer(result.rows) | Saving(calls=unique(waits[waits >= 0]))
    found = view.finding(
        f"{result.why}: what may be computed again takes {ms(total_ns)}, "
        f"{percent(total_ns / view.gpu_ns)} of the GPU time",
        cost_ns=gpu_time(view, result.rows),
        cost_of="GPU time of what is computed again",
        place=result.place,
        rows=result.rows,
        weight=duration,
        remedy=result.remedy,
        confidence="medium",
        wins_frac=1 - result.left,
        saving=shorter(result.rows, result.left) if result.left else saving,
    )
    return replace(found, severity_at_most="medium")


def _of_all_steps(view: View, sites: Sequence[CallSite], least_ns: float) -> list[SameResult]:
    """Of those that lie in each other the outermost counts; its place is the innermost with most of it."""
    same = "launches the same in each step, nothing of it random or from the host"
    again = [
        SameResult(place, f"this line reads nothing but its object and {same}", rows)
        for place, rows in pure_lines(view, least_ns)
    ]
    for site in sites:
        rows = unique(np.concatenate([each.rows for each in sites if each.same_function(site)]))
        again.append(SameResult(site.caller, f"{site.callee.function} has no arguments and {same}", rows))
    again = [each for each in again if _depends_on_nothing_else(view, each.rows)]
    again = [each for each in again if _same_in_each_step(view, each.rows)]
    changed = changed_attributes(view) if again else set()
    again = [each for each in again if not reads_what_changes(view, each.place, each.rows, changed)]
    results = []
    for each in sorted(again, key=lambda one: -_took_ns(view, one.rows)):
        most_ns = MOSTLY_FRAC * _took_ns(view, each.rows)
        within = [one for one in again if _took_ns(view, np.intersect1d(one.rows, each.rows)) >= most_ns]
        inner = min(within, key=lambda one: _took_ns(view, one.rows))
        results.append(SameResult(inner.place, inner.why, each.rows))
    return results


def _of_several_lines(view: View, sites: Sequence[CallSite]) -> Iterator[SameResult]:
    sites = [site for site in sites if _depends_on_nothing_else(view, site.rows)]
    for site in sites:
        kernels = _kernels(view, site.rows)
        others = [
            each
            for each in sites
            if each.caller != site.caller
            and (each.caller.file, each.caller.function) == (site.caller.file, site.caller.function)
            and each.same_function(site)
            and np.array_equal(_kernels(view, each.rows), kernels)
        ]
        if others:
            lines = f"is called at {len(others) + 1} lines of one function"
            rows = np.concatenate([each.rows for each in others])
            yield SameResult(others[0].caller, f"{site.callee.function} has no arguments and {lines}", rows)


def _of_same_calls(view: View, least_ns: float) -> Iterator[SameResult]:
    """All but the call that took longest need not be made: one may be under no_grad()."""
    for calls in same_calls(view, least_ns):
        sites = sorted((call.site for call in calls), key=lambda site: -_took_ns(view, site.rows))
        if all(_depends_on_nothing_else(view, site.rows) for site in sites):
            rows = np.concatenate([site.rows for site in sites[1:]])
            why = f"{calls[0].text} is computed at {len(sites)} lines of one function"
            yield SameResult(sites[1].caller, why, rows)


def _of_draws(view: View, least_ns: float) -> Iterator[SameResult]:
    for site, rows in draws(view, least_ns):
        why = f"each pass of a comprehension calls {site.callee.function} with the same arguments"
        yield SameResult(site.caller, f"{why}, until something random", rows, OF_DRAWS)


def _of_shapes(view: View, least_ns: float) -> Iterator[SameResult]:
    """Where the shapes are the same in each step."""
    changed = changed_attributes(view)
    for rows in made_of_shapes(view):
        place = view.hottest_line(rows, view.operations.duration_ns[rows])
        if _took_ns(view, rows) < least_ns or place is None or not _depends_on_nothing_else(view, rows):
            continue
        if _same_in_each_step(view, rows, sizes=True) and not reads_what_changes(view, place, rows, changed):
            why = "what shapes alone tell, which stay, is made again"
            yield SameResult(place, why, rows)


def _of_copies(view: View, least_ns: float) -> Iterator[SameResult]:
    for site, rows, left in repeated_rows(view, least_ns):
        why = f"{site.callee.function} gets copies of rows, which give the same until something random"
        yield SameResult(site.caller, why, rows, OF_COPIES, left)


def _of_factors(view: View, least_ns: float) -> Iterator[SameResult]:
    for place, rows in factored_again(view):
        if _took_ns(view, rows) >= least_ns and _same_in_each_step(view, rows):
            why = "this line factorises a matrix in each step that nothing changes"
            yield SameResult(place, why, rows, OF_FACTORS)


def _depends_on_nothing_else(view: View, rows: I64) -> bool:
    """Where something is trained, a value that the host reads is a figure of what has changed."""
    host = view.classes[rows] == OperationClass.HOST_TO_DEVICE
    if (view.attribution.phase == Phase.BACKWARD).any():
        host |= view.classes[rows] == OperationClass.DEVICE_TO_HOST
    updates = view.attribution.line_phase[rows] == LinePhase.OPTIMIZER
    return not (host | updates | view.kernels_named(RANDOM)[rows]).any()


def _same_in_each_step(view: View, rows: I64, sizes: bool = False) -> bool:
    """Whether each whole step launches the same, and nothing is trained through it. sizes: as many blocks."""
    found, steps = view.attribution, view.steps
    if steps is None or (found.phase[rows] == Phase.BACKWARD).any() or (found.call[rows] < 0).any():
        return False
    process = unique(view.operations.process[rows])
    begins_ns = steps.host_start_ns[steps.process == process[0]]
    number = np.searchsorted(begins_ns, view.calls.start_ns[found.call[rows]], "right") - 1
    whole = (number >= 0) & (number < len(begins_ns) - 1)
    if len(process) > 1 or len(begins_ns) <= FEWEST_STEPS:
        return False
    blocks = np.nan_to_num(blocks_of(view)[rows], posinf=-1).astype(np.int64)
    kind = numbered(view.operations.name[rows], blocks if sizes else np.zeros_like(blocks))
    counts = np.zeros((len(begins_ns) - 1, len(rows)), dtype=np.int64)
    np.add.at(counts, (number[whole], kind[whole]), 1)
    return bool(counts[0].any() and (counts == counts[0]).all())


def _kernels(view: View, rows: I64) -> I64:
    """How often each kernel was launched in forward."""
    forward = rows[view.attribution.phase[rows] == Phase.FORWARD]
    return np.bincount(view.operations.name[forward], minlength=len(view.operations.names))


def _took_ns(view: View, rows: I64) -> int:
    return int(view.operations.duration_ns[rows].sum())
