# SPDX-License-Identifier: Apache-2.0
"""What is said above every table about the ranks of a job: which they are, and how their clocks agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from profiling_lab.analysis.ranks.clocks import Clocks
from profiling_lab.analysis.ranks.reading import Failure
from profiling_lab.analysis.ranks.summary import RankFacts
from profiling_lab.report import numbers

_LISTED = 16


def job_lines(
    facts: Sequence[RankFacts],
    files: int,
    world_size: int | None,
    said_by: str,
    window: tuple[tuple[str, str], ...],
    missing: tuple[int, ...],
    failures: tuple[Failure, ...],
) -> tuple[str, ...]:
    """Lines for people; indented ones belong to the line above them."""
    gpu_ns, attributed = sum(rank.gpu_ns for rank in facts), sum(rank.attributed_ns for rank in facts)
    operations = sum(rank.operations for rank in facts)
    of = f" of {world_size}" if world_size not in (None, len(facts)) else ""
    lines = [
        f"{numbers.counted(len(facts), 'rank')}{of} in {numbers.counted(files, 'file')}: "
        f"{numbers.time(gpu_ns)} of GPU time in {numbers.counted(operations, 'operation')}, summed",
        f"  {said_by}",
        f"  {numbers.share(attributed / gpu_ns if gpu_ns else 0.0)} of it has a line of your code",
    ]
    if window:
        asked = ", ".join(f"--{name} {value}" for name, value in window)
        lines.append(f"  window: {asked}, of each recording")
    if missing:
        lines.append(f"  missing: rank {_listed(missing)}")
    return (*lines, *(f"  left out: {failure.sentence}" for failure in failures))


def job_coverage(
    facts: Sequence[RankFacts], missing: tuple[int, ...], failures: tuple[Failure, ...], notes: Sequence[str]
) -> dict[str, Any]:
    """The same for machines."""
    return {
        "gpu_ns": sum(rank.gpu_ns for rank in facts),
        "attributed_ns": sum(rank.attributed_ns for rank in facts),
        "operations": sum(rank.operations for rank in facts),
        "ranks": len(facts),
        "missing_ranks": list(missing),
        "unreadable": [asdict(failure) for failure in failures],
        "notes": list(notes),
    }


def clocks_line(clocks: Clocks) -> str:
    """How times of different ranks can be compared."""
    accuracy = "" if clocks.accuracy_ns is None else f", ± {numbers.time(clocks.accuracy_ns)}"
    if clocks.own:
        alone = numbers.counted(clocks.own, "rank")
        accuracy += f"; {alone} with too few collectives in common, each left with its own clock"
    how = {
        "one": f"one file, one clock{accuracy}",
        "collectives": f"moved by up to {numbers.time(clocks.moved_ns)} so that ranks leave collectives "
        f"together{_rates(clocks)}{accuracy}",
        "wall": "as the machines had them: no collective that all share to check them by",
        "none": "cannot be compared: the files do not tie them to the calendar and share too few "
        "collectives; each rank is judged by its own durations",
    }[clocks.state]
    return f"  clocks: {how}"


def _rates(clocks: Clocks) -> str:
    return f", their rates by up to {clocks.rate * 1e6:.2g} ppm" if clocks.rate else ""


def _listed(values: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, values[:_LISTED]))
    return f"{shown} and {len(values) - _LISTED} more" if len(values) > _LISTED else shown
