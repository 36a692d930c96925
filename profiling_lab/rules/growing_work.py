# SPDX-License-Identifier: Apache-2.0
"""Does a line launch more and more as time goes on?

What is added in each step and never removed is done once more in each: a hook that is registered again, a
callback, a list that is gone through from its beginning. Then a line launches more operations each time that
it comes, one after the other. The rule counts these and finds lines where they hardly ever get fewer and are
at last twice as many as at first. What is more than at first is saved. A program that gets more to do on
purpose looks the same, so the severity is at most medium.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import Finding, RuleResult, Threshold, ms, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64, unique

SHARE = Threshold(
    "share", "what is more than at first takes", 0.05, "of the GPU time, at least", "ours: as medium"
)
TIMES = Threshold("times", "the line comes", 24, "at least", "ours: chance grows no line so often")
GROWTH = Threshold("growth", "launches of the last quarter", 2.0, "of those of the first, at least", "ours")
RISING_FRAC, LEVELS = 0.95, 6
"""how often the number does not fall, and how many numbers there are"""
REMEDY = (
    "something is added each time and never removed: keep a hook's handle and call remove(), register "
    "callbacks once, clear the list"
)


def check(view: View) -> RuleResult:
    call, place = view.attribution.call, view.operation_place
    rows = np.flatnonzero((call >= 0) & (view.attribution.phase != Phase.UNKNOWN)).astype(np.int64)
    rows = rows[np.lexsort((view.calls.start_ns[call[rows]], view.calls.thread[call[rows]]))]
    key = 2 * place[rows].astype(np.int64) + (view.attribution.phase[rows] == Phase.BACKWARD)
    thread = view.calls.thread[call[rows]]
    begins = np.append(True, (key[1:] != key[:-1]) | (thread[1:] != thread[:-1]))[: len(rows)]
    first, run = np.flatnonzero(begins), np.cumsum(begins) - 1
    length = np.diff(np.append(first, len(rows)))
    findings = []
    for number, runs in grouped(np.arange(len(first)), key[first]):
        if number >= 0 and _grows(view, length[runs]):
            left = np.minimum(_at_first(length[runs]) / length[runs], 1.0)
            inside = np.isin(run, runs)
            of_row = left[np.searchsorted(runs, run[inside])]
            finding = _finding(view, rows[inside], of_row, length[runs])
            findings += [finding] if finding else []
    return findings or view.too_few_lines("that no line launches more and more") or ()


def _at_first(length: I64) -> float:
    return float(length[: len(length) // 4].min())


def _grows(view: View, length: I64) -> bool:
    if len(length) < view[TIMES] or len(unique(length)) < LEVELS:
        return False
    quarter = len(length) // 4
    rising = float((length[1:] >= length[:-1]).mean()) >= RISING_FRAC
    return rising and float(length[-quarter:].mean()) >= view[GROWTH] * float(length[:quarter].mean())


def _finding(view: View, rows: I64, left: np.ndarray, length: I64) -> Finding | None:
    duration = view.operations.duration_ns[rows]
    more_ns = int((duration * (1 - left)).sum())
    if more_ns < view[SHARE] * view.gpu_ns:
        return None
    return view.finding(
        f"this line launches more and more: {_at_first(length):.0f} operations one after the other at first, "
        f"{length[-1]} at last; what is more than at first takes {ms(more_ns)}, "
        f"{percent(more_ns / view.gpu_ns)} of the GPU time",
        cost_ns=min(gpu_time(view, rows), more_ns),
        cost_of="GPU time of what is more than at first",
        place=view.hottest_line(rows, duration),
        rows=rows,
        weight=duration,
        remedy=REMEDY,
        confidence="medium",
        wins_frac=1.0,
        saving=fewer(rows, left),
    )


RULE = Rule(
    "growing_work",
    "Does a line launch more and more as time goes on?",
    (SHARE, TIMES, GROWTH),
    check,
    __doc__ or "",
    time=Time.BUSY,
    severity_at_most="medium",
)
