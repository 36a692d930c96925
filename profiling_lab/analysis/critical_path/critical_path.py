# SPDX-License-Identifier: Apache-2.0
"""The critical path of a step: what sets its length, by line, and what a change of a line would win.

A nanosecond of a line matters only where nothing else would take its place: the path says where time goes,
the graph computed again with other times says what a step would win.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.coverage import Coverage
from profiling_lab.analysis.critical_path.build import build_graph
from profiling_lab.analysis.critical_path.graph import Graph
from profiling_lab.analysis.critical_path.kinds import CUDA_CALLS, GROUPS
from profiling_lab.analysis.critical_path.notes import notes_of
from profiling_lab.analysis.critical_path.recorder_time import is_noted, recorder_note
from profiling_lab.analysis.critical_path.rows import Link, PathLine, chain, path_lines
from profiling_lab.analysis.critical_path.walk import path, steps_found
from profiling_lab.analysis.critical_path.what_if import Touched, of_sites, parse, predicted, touched
from profiling_lab.analysis.places import covered
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I64, unique
from profiling_lab.trace.step_windows import step_windows
from profiling_lab.trace.trace import Trace

ALL = "all"
"""the change that stands for each of the top lines"""
_MOST_GAINS = 30
"""lines of which the gain is computed at most"""


@dataclass(frozen=True, slots=True)
class PathStep:
    """The step whose path is shown."""

    number: int
    """as `--step` counts"""
    name: str
    is_named: bool
    """the name is that of the program's range"""
    pid: int
    start_ns: int
    """on the clock of the file"""
    length_ns: int
    plain_length_ns: int | None
    """about as long as without a recording; None where it does not say what it took"""


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The path of one step, by line."""

    lines: tuple[PathLine, ...]
    """the largest first"""
    total_matched: int
    step: PathStep
    steps: int
    """among which it is the one of median length"""
    how: str
    """the steps were found"""
    group_ns: tuple[int, ...]
    """the step's length by kinds.GROUPS"""
    coverage: Coverage
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PathChain:
    """The path of one step in order of time."""

    links: tuple[Link, ...]
    """the longest, in order of time"""
    total_matched: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step with a change, without what recording takes."""

    key: str
    """what changes, and by which factor"""
    path_ns: int
    """what it takes on the path of the shown step"""
    before_ns: int
    after_ns: int

    @property
    def gain_ns(self) -> int:
        return self.before_ns - self.after_ns

    @property
    def gain_frac(self) -> float:
        return self.gain_ns / self.before_ns if self.before_ns else 0.0


@dataclass(frozen=True, slots=True)
class Predictions:
    """The median step with each change, and none with a recording."""

    rows: tuple[Prediction, ...]
    total_matched: int


class PathOfStep:
    """The path of a trace's step, and the graph behind it.

    In a part of a trace the step is one of those inside, but what it waited for may lie before.
    """

    def __init__(self, trace: Trace, steps_by: str | None = None, own: tuple[str, ...] = ()) -> None:
        """Raises NotEnoughDataError where launches or operations are missing."""
        steps = step_windows(trace, steps_by)
        self.graph: Graph = build_graph(trace.whole, own)
        time_ns, decided_by = self.graph.schedule()
        self._found = steps_found(self.graph, steps)
        self._lengths = self._found.lengths(time_ns)
        self._plain = predicted(self.graph, self._found, ())
        if not len(self._lengths):
            raise NotEnoughDataError(
                f"{trace.path}: no step begins and ends with recorded launches or operations ({steps.how})"
            )
        self._trace, self._own = trace, own
        self._at = int(np.argsort(self._lengths, kind="stable")[(len(self._lengths) - 1) // 2])
        self.segments, self._chain = path(self.graph, decided_by, self._found, self._at)
        self._lines = path_lines(self.graph, self.segments)

    def by_line(self, limit: int | None = None, gains: bool = True) -> CriticalPath:
        """The path summed by line; gains: with what each of the largest lines would win."""
        steps, at = self._found.steps, self._at
        shown = self._lines[:limit]
        most = _MOST_GAINS if gains else 0
        gain_ns = dict(self._gains([number for number, _ in shown[:most] if number >= 0]))
        lines = [replace(line, gain_ns=gain_ns.get(number)) for number, line in shown]
        total = [sum(line.group_ns[group] for _, line in self._lines) for group in range(len(GROUPS))]
        noted = is_noted(self._trace, int(steps.process[at]))
        length_ns, plain_ns = int(self._lengths[at]), int(self._plain[at])
        in_calls_ns = int(self.segments.ns[np.isin(self.segments.kind, CUDA_CALLS)].sum())
        calls_frac = in_calls_ns / max(length_ns, 1)
        return CriticalPath(
            lines=tuple(lines),
            total_matched=len(self._lines),
            step=PathStep(
                number=int(steps.number[at]),
                name=steps.names[at],
                is_named=steps.are_named,
                pid=self._trace.pids[int(steps.process[at])],
                start_ns=int(steps.start_ns[at]),
                length_ns=length_ns,
                plain_length_ns=plain_ns if noted else None,
            ),
            steps=len(steps),
            how=steps.how,
            group_ns=tuple(total),
            coverage=covered(self._trace, self._own)[1],
            notes=(
                *notes_of(self._trace.whole, self.graph, self.segments, len(unique(steps.process))),
                *recorder_note(noted, length_ns, plain_ns, calls_frac),
            ),
        )

    def chain(self, limit: int | None = None) -> PathChain:
        """The path in order of time; with a limit its longest links."""
        links = list(chain(self.graph, self.segments))
        longest = sorted(links, key=lambda link: -link.ns)[:limit]
        return PathChain(tuple(sorted(longest, key=lambda link: link.number)), len(links))

    def what_if(self, changes: list[str], limit: int | None = None) -> Predictions:
        """The median step with each change, and with all of them; `all`: without each of the top lines.

        Raises UsageError for a text that is not a change, and for a change of what the trace does not have.
        """
        if changes == [ALL]:
            return self._ranking(limit)
        parsed = [parse(text) for text in changes]
        found = [(touched(self.graph, change.target), change.factor) for change in parsed]
        rows = [
            self._prediction(str(change), self._on_path(one[0].parts), [one])
            for change, one in zip(parsed, found, strict=True)
        ]
        if len(rows) > 1:
            union = unique(np.concatenate([what.parts for what, _ in found]))
            rows.append(self._prediction("all of these", self._on_path(union), found))
        return Predictions(tuple(rows), len(rows))

    def _ranking(self, limit: int | None) -> Predictions:
        numbers = [number for number, _ in self._lines if number >= 0][:_MOST_GAINS]
        # A line may hold others up without taking time itself.
        owners, times = np.unique(self.graph.owner[self._chain], return_counts=True)
        for number in owners[np.argsort(-times, kind="stable")].tolist():
            if number >= 0 and number not in numbers and len(numbers) < 2 * _MOST_GAINS:
                numbers.append(number)
        path_ns = {number: line.path_ns for number, line in self._lines}
        before = self._median(self._plain)
        rows = [
            Prediction(f"{self.graph.sites[number].key}=0", path_ns.get(number, 0), before, before - gain_ns)
            for number, gain_ns in self._gains(numbers)
        ]
        rows.sort(key=lambda row: (-row.gain_ns, -row.path_ns, row.key))
        return Predictions(tuple(rows[:limit]), len(rows))

    def _gains(self, sites: list[int]) -> list[tuple[int, int]]:
        before = self._median(self._plain)
        return [
            (
                site,
                before
                - self._median(predicted(self.graph, self._found, [(of_sites(self.graph, [site]), 0.0)])),
            )
            for site in sites
        ]

    def _prediction(self, key: str, path_ns: int, changes: list[tuple[Touched, float]]) -> Prediction:
        after = self._median(predicted(self.graph, self._found, changes))
        return Prediction(key, path_ns, self._median(self._plain), after)

    def _on_path(self, parts: npt.NDArray[np.intp]) -> int:
        mine = parts[np.isin(self.graph.parts.edge[parts], self._chain)]
        return int(self.graph.parts.ns[mine].sum())

    @staticmethod
    def _median(ns: I64) -> int:
        return int(np.sort(ns)[(len(ns) - 1) // 2])
