# SPDX-License-Identifier: Apache-2.0
"""Two programs recorded in turns: the report of `diff`, what ran, and whether both printed the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from profiling_lab.analysis.diff.diff import DiffResult
from profiling_lab.analysis.diff.outputs import Compared
from profiling_lab.records import dataclass, replace
from profiling_lab.report.diff.diff import diff_report
from profiling_lab.report.diff.text import unit_of
from profiling_lab.report.numbers import counted
from profiling_lab.report.table import Report


@dataclass(frozen=True, slots=True)
class Side:
    """One program: side A is 'before' in `diff`'s words, side B is 'after'."""

    command: str
    commit: str
    """'' for the working tree"""
    seconds: tuple[float, ...]
    """what each run took, from the start of its process to the end"""

    @property
    def text(self) -> str:
        return f"{self.command} at {self.commit}" if self.commit else self.command


@dataclass(frozen=True, slots=True)
class Ratio:
    """B's time over A's, each pair of runs against each other, with its 95 % confidence interval."""

    pairs: int
    of_medians: float
    low: float
    high: float


def ab_report(
    result: DiffResult,
    sides: tuple[Side, Side],
    outputs: Compared,
    ratio: Ratio | None,
    notes: Sequence[str] = (),
    limit: int | None = None,
    kept: str = "",
) -> Report:
    """`kept`: the folder with the recordings, '' if they are deleted."""
    about = [
        f"before is A: {sides[0].text}",
        f"after is B: {sides[1].text}",
        f"outputs: {outputs.sentence}",
        *([_ratio_line(ratio, unit_of(result))] if ratio is not None and result.comparable else []),
        *(f"note: {note}" for note in notes),
    ]
    report = diff_report(result, limit, about=about, every_capture=False)
    first = ("OUTPUTS DIFFER: the times below are of programs that do not print the same",)
    header = (*first, *report.header) if outputs.state == "differ" else report.header
    more: dict[str, Any] = {
        "sides": {name: asdict(side) for name, side in zip("ab", sides, strict=True)},
        "outputs": asdict(outputs),
        "ratio": asdict(ratio) if ratio is not None else None,
        "notes": list(notes),
        "kept": kept or None,
    }
    return replace(report, command="ab", header=header, summary={**(report.summary or {}), **more})


def _ratio_line(ratio: Ratio, unit: str) -> str:
    return (
        f"by process: B takes {ratio.of_medians:.3f} of A's time per {unit}, 95 % interval "
        f"{ratio.low:.3f} .. {ratio.high:.3f}, from {counted(ratio.pairs, 'pair')} of runs"
    )
