# SPDX-License-Identifier: Apache-2.0
"""What a program would win by the remedy of a finding: its steps again, without what the remedy takes away.

Rules say what goes (Finding.saving). What a step wins by that, the graph of what waited for what decides: see
analysis/critical_path/savings.py. A finding that does not know what goes, and a symptom, whose remedy is yet
to be found, say only what a step would win at most. One whose remedy is known, and only not whether it can be
applied, says what that would win, but is ranked as a symptom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.critical_path.savings import Saved, Saving
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import replace
from profiling_lab.rules.callers import callers, function_of
from profiling_lab.rules.finding import Finding, lower
from profiling_lab.rules.fold import order
from profiling_lab.rules.loop_waits import with_launches
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64
from profiling_lab.trace.step_windows import step_windows
from profiling_lab.trace.window import WindowSelection

MOST_OPERATIONS = 200_000
"""of which the graph is made; more would take longer than all rules"""


def with_gains(
    view: View, findings: Sequence[Finding], rules: Mapping[str, Rule]
) -> tuple[list[Finding], int | None]:
    """The findings with what they would win, in the order of fold.order; and how much longer recording makes
    a step, None if that is not known.
    """
    gains = _gains(view) if any(finding.saving for finding in findings) else None
    steps = int(np.bincount(view.steps.process).max()) if view.steps else 0
    found = []
    for finding in _with_their_work(view, findings, rules):
        most_ns = min(finding.per_step_ns or 0, view.longest_step_ns) if steps else None
        most_ns = most_ns if finding.per_step_ns is not None else None
        won_ns = gains.of(finding.saving) if gains and finding.saving else None
        finding, rule = replace(finding, at_most_per_step_ns=most_ns), rules[finding.rule]
        gain_ns = min((won_ns or 0) * max(steps, 1), view.span_ns)
        if won_ns is not None and rule.symptom:
            finding = replace(
                finding,
                rank_ns=min(finding.rank_ns, round((finding.wins_frac or 0) * won_ns * max(steps, 1))),
                at_most_per_step_ns=won_ns if steps else None,
            )
        elif won_ns is not None:
            finding = replace(
                finding,
                severity=lower(finding.severity, rule.severity(gain_ns, view.span_ns)),
                at_most_per_step_ns=max(won_ns, most_ns or 0) if steps else None,
            )
        if won_ns is not None and (rule.conditional or not rule.symptom):
            finding = replace(finding, gain_ns=gain_ns, gain_per_step_ns=won_ns if steps else None)
        found.append(finding)
    recording_ns = gains.recording_ns if gains and steps else None
    return sorted(found, key=lambda finding: order(finding, rules)), recording_ns


def _with_their_work(view: View, findings: Sequence[Finding], rules: Mapping[str, Rule]) -> Iterator[Finding]:
    """The first finding about one work of the host, at a line or in a function, takes away what the others
    about it do, and those that it explains: a metric that is no longer computed on the host is not copied
    there either.
    """
    leaving = callers(view)

    def works(finding: Finding) -> set[tuple[str, object]]:
        places = [place for place in (finding.place, finding.around) if place]
        return {(p.file, p.line if (p.file, p.function) in leaving else function_of(p)[1]) for p in places}

    known = [f for f in findings if rules[f.rule].of_host and f.saving]
    taken = set[tuple[str, object]]()
    for finding in findings:
        mine = works(finding)
        if any(finding is each for each in known) and mine and not mine & taken:
            others = [other for other in known if other is not finding and works(other) & mine]
            taken |= mine.union(*map(works, others))
            others += [e for e in finding.effects if rules[e.rule].of_host and works(e) & mine]
            saving = reduce(or_, (other.saving for other in others if other.saving), finding.saving)
            loops = [f.saving for f in findings if rules[f.rule].adds and f.saving and works(f) & mine]
            finding = with_launches(view, replace(finding, saving=saving), loops)
        yield finding


class _Gains:
    """The steps without what remedies take away. Of long recordings a part: steps are alike."""

    def __init__(self, view: View) -> None:
        """Raises NotEnoughDataError where the graph cannot be known."""
        trace, steps = view.trace, view.steps
        self._rows: tuple[I64, I64] | None = None
        if len(trace.operations) > MOST_OPERATIONS:
            if steps is None:
                raise NotEnoughDataError(f"more than {MOST_OPERATIONS:,} operations, and no steps")
            every = int(np.bincount(steps.process).max())
            number = max(MOST_OPERATIONS * every // len(trace.operations), 1)
            first = int(steps.number.min()) + (every - number) // 2
            chosen = WindowSelection(step=f"{first}:{first + number}", steps_by=view.steps_by)
            part = trace.whole.windowed(chosen)
            self._rows = (
                _row_in(part.operation_rows, trace.operation_rows, len(trace.whole.operations)),
                _row_in(part.call_rows, trace.call_rows, len(trace.whole.calls)),
            )
            trace, steps = part, step_windows(part, view.steps_by)
        self._saved = Saved(trace, steps, view.ownership.paths)
        self.recording_ns = self._saved.recording_ns()
        self._most_ns = view.longest_step_ns if view.steps else view.span_ns

    def of(self, saving: Saving) -> int:
        """What a step would win; without steps all of the recording."""
        within = saving.renumbered(*self._rows) if self._rows else saving
        return min(self._saved.per_step_ns(within), self._most_ns)


def _row_in(part: npt.NDArray[np.intp], rows: npt.NDArray[np.intp], size: int) -> I64:
    """Per row of `rows`, rows of the whole trace, its number in `part`; -1 for what is not in it."""
    number = np.full(size, -1, dtype=np.int64)
    number[part] = np.arange(len(part))
    return number[rows]


def _gains(view: View) -> _Gains | None:
    try:
        return _Gains(view)
    except NotEnoughDataError:
        return None
