# SPDX-License-Identifier: Apache-2.0
"""All ranks of a job: read, numbered, put on one clock, compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from profiling_lab.analysis.ranks.assignment import Assignments, assign, numbered, shift_of, starts_of
from profiling_lab.analysis.ranks.clock_move import ClockMove
from profiling_lab.analysis.ranks.clocks import Clocks, align
from profiling_lab.analysis.ranks.finding import PathFinding, find
from profiling_lab.analysis.ranks.lines import LineTimes
from profiling_lab.analysis.ranks.notes import absent, ended_early, of_path, of_rows, other_program, unnamed
from profiling_lab.analysis.ranks.options import Options
from profiling_lab.analysis.ranks.path_part import NoPart, RankPart, parts_in, parts_of
from profiling_lab.analysis.ranks.pools import Done, Handle, LocalPool, Pool
from profiling_lab.analysis.ranks.reading import Failure, FileSummary
from profiling_lab.analysis.ranks.summary import RankFacts, summarize
from profiling_lab.analysis.ranks.tables import (
    CollectiveRow,
    RankLineRow,
    RankStepRow,
    collective_rows,
    line_rows,
    step_rows,
)
from profiling_lab.analysis.ranks.totals import (
    Meetings,
    RankComparison,
    RankRow,
    Totals,
    meetings,
    merge_totals,
    rows_of,
    totals_of,
)
from profiling_lab.analysis.ranks.verdict import Excess, JobVerdict, excess, suspects, verdict
from profiling_lab.errors import LabError, NotEnoughDataError, UnreadableInputError, UsageError
from profiling_lab.records import dataclass, replace
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I64


@dataclass(frozen=True, slots=True)
class JobResult:
    """Rows in the order of the ranks, collectives by lost time, steps by number, lines by difference."""

    rows: tuple[RankRow, ...]
    collectives: tuple[CollectiveRow, ...]
    steps: tuple[RankStepRow, ...]
    lines: tuple[RankLineRow, ...]
    verdict: JobVerdict
    clocks: Clocks
    files: int
    """that could be read"""
    said_by: str
    """how ranks got their numbers, as a sentence"""
    missing: tuple[int, ...]
    """ranks of the job without a recording"""
    world_size: int | None
    common_steps: int
    """steps that all ranks with steps have"""
    how: str
    """how steps were found, as a sentence"""
    window: tuple[tuple[str, str], ...]
    """the part of each file that was looked at, as it was asked for; () for all of it"""
    failures: tuple[Failure, ...]
    notes: tuple[str, ...]
    path: PathFinding | None = None
    """what sets the step across ranks; None where that cannot be followed: a note says why"""

    @property
    def step_ns(self) -> int:
        """The mean step over ranks that have steps."""
        return mean_step_ns(self.rows)


def ranks(
    paths: Sequence[str],
    options: Options | None = None,
    pool: Pool | None = None,
    done: Done = lambda _: None,
    only: tuple[int, ...] = (),
    devices: tuple[int, ...] = (),
) -> JobResult:
    """Compare the ranks of one job. paths: its files, each with one rank or several.

    pool: where to work, by default in processes of this machine; done: called as files are read; only,
    devices: compare these ranks, and ranks on these CUDA devices, alone.

    Raises UsageError for ranks that there are not, NotEnoughDataError if fewer than two ranks are left or the
    files belong to several jobs, UnreadableInputError if no file could be read.
    """
    pool = pool or LocalPool()
    options = options or Options()
    result = _compared(pool, pool.read(list(paths), options, done), options, only, devices)
    check_own(options.own, [row.facts for row in result.rows])
    return result


def check_own(own: Sequence[str], ranks: Sequence[RankFacts]) -> None:
    """Raises UsageError if paths are given and no rank has a line there."""
    if own and not any(facts.attributed_ns for facts in ranks):
        raise UsageError(f"--own {', '.join(own)}: no line of the recordings is there")


def ranks_in(trace: Trace, options: Options | None = None) -> JobResult:
    """Compare the ranks of one open file. Raises as `ranks`; UsageError also as `step_windows`."""
    options = options or Options()
    file = FileSummary(str(trace.path), summarize(trace, options))
    return _compared(LocalPool(1), [file], options, (), (), trace)


@dataclass(frozen=True, slots=True)
class Joined:
    """The ranks of a job, numbered and on one clock; their summaries are where the pool has them."""

    handles: list[Handle]
    chosen: tuple[tuple[RankFacts, ...], ...]
    """per file the ranks that were asked for"""
    assignments: Assignments
    clocks: Clocks
    totals: Totals
    met: Meetings
    failures: tuple[Failure, ...]
    notes: tuple[str, ...]


def joined(
    pool: Pool, handles: list[Handle], only: tuple[int, ...], devices: tuple[int, ...], least: int = 2
) -> Joined:
    """Put what was read together; it takes the place of what the handles refer to.

    least: how many ranks are needed. Raises as `ranks`.
    """
    read: list[FileSummary | tuple[RankFacts, ...]] = pool.gather(pool.map(facts_of, handles))
    failures = tuple(
        entry.failure for entry in read if isinstance(entry, FileSummary) and entry.failure is not None
    )
    all_facts = [() if isinstance(entry, FileSummary) else entry for entry in read]
    if not any(all_facts):
        worst = max(failures, key=lambda failure: failure.exit_code, default=None)
        raise _none_left(worst, len(failures))
    assignments = numbered(all_facts, only, devices, least)
    kept = [i for i, file in enumerate(assignments.of_files) if any(file)]
    handles[:] = [handles[i] for i in kept]
    pool.change(assign, handles, [assignments.of_files[i] for i in kept])
    chosen = tuple(
        tuple(facts for facts, one in zip(all_facts[i], assignments.of_files[i], strict=True) if one)
        for i in kept
    )
    note = _matched_steps(pool, handles, chosen)
    clocks = align(pool, handles, [tuple(facts.is_wall for facts in file) for file in chosen])
    totals: Totals = pool.merge(merge_totals, handles, totals_of)
    present = tuple(sorted(one.rank for file in assignments.of_files for one in file if one))
    with_steps = sum(facts.steps > 0 for file in chosen for facts in file)
    common = totals.walls.keys[totals.walls.ranks == with_steps].astype(np.int64)
    met = meetings(totals, RankComparison(present, common, clocks.accuracy_ns or 0, clocks.comparable))
    notes = (
        *assignments.notes,
        *note,
        *ended_early([facts for file in pool.gather(pool.map(facts_of, handles)) for facts in file], totals),
        *absent(assignments.missing),
        *other_program(totals),
        *unnamed(totals, chosen[0][0].communicators),
    )
    return Joined(handles, chosen, assignments, clocks, totals, met, failures, notes)


def _compared(
    pool: Pool,
    handles: list[Handle],
    options: Options,
    only: tuple[int, ...],
    devices: tuple[int, ...],
    opened: Trace | None = None,
) -> JobResult:
    """opened: the one file of the job, if it is open here."""
    job = joined(pool, handles, only, devices)
    totals, met, handles = job.totals, job.met, job.handles
    comparison = met.comparison
    per_file: list[tuple[RankRow, ...]] = pool.gather(pool.map(rows_of, handles, met))
    rows = tuple(sorted((row for file in per_file for row in file), key=lambda row: row.rank))
    counted = [row for row in rows if row.steps]

    def ask(ranks: tuple[int, ...], steps: I64) -> list[RankPart | NoPart]:
        if opened is not None:
            return list(parts_in(opened, pool.gather(handles)[0], options, ranks, steps))
        holders = [h for h, file in zip(handles, per_file, strict=True) if any(r.rank in ranks for r in file)]
        return [
            part
            for file in pool.gather(pool.read_again(parts_of, holders, options, ranks, steps))
            for part in file
        ]

    finding = find(ask, counted, met)
    path = finding if isinstance(finding, PathFinding) else None
    excesses = _excesses(pool, handles, per_file, counted, totals)
    return JobResult(
        rows=rows,
        collectives=collective_rows(totals, met),
        steps=step_rows(totals, comparison),
        lines=line_rows(totals, mean_step_ns(rows)),
        verdict=verdict(counted, excesses, path),
        clocks=job.clocks,
        files=len(job.chosen),
        said_by=job.assignments.said_by,
        missing=job.assignments.missing,
        world_size=job.assignments.world_size,
        common_steps=len(comparison.steps),
        how=_how(job.chosen),
        window=options.asked,
        failures=job.failures,
        notes=(*job.notes, *of_rows(rows, comparison.steps), *of_path(finding, counted)),
        path=path,
    )


def mean_step_ns(rows: Sequence[RankRow]) -> int:
    steps = [row.step_ns for row in rows if row.steps]
    return sum(steps) // len(steps) if steps else 0


def facts_of(file: FileSummary) -> FileSummary | tuple[RankFacts, ...]:
    """The facts of the ranks of a file, or the file itself if it could not be used."""
    return file if file.failure is not None else tuple(rank.facts for rank in file.ranks)


def lines_of(file: FileSummary, rank: int) -> LineTimes | None:
    return next((summary.lines for summary in file.ranks if summary.facts.rank == rank), None)


def _none_left(worst: Failure | None, count: int) -> LabError:
    if worst is None:
        return NotEnoughDataError("expected the recordings of at least two ranks, got none")
    more = f" ({count} files failed in all)" if count > 1 else ""
    kind = UnreadableInputError if worst.exit_code == UnreadableInputError.exit_code else NotEnoughDataError
    return kind(f"{worst.sentence}{more}")


def _matched_steps(
    pool: Pool, handles: list[Handle], all_facts: Sequence[Sequence[RankFacts]]
) -> tuple[str, ...]:
    """Give steps that were counted per recording the same numbers, where some recordings have fewer: they may
    have begun later. The calendar decides, if all clocks are tied to it.
    """
    every = [facts for file in all_facts for facts in file]
    counts = {facts.steps for facts in every}
    if len(counts) == 1 or all(facts.named for facts in every):
        return ()
    listed = f"ranks have {min(counts)} to {max(counts)} steps"
    if len(all_facts) > 1 and not all(facts.is_wall for facts in every):
        return (f"{listed} and clocks that cannot be compared: steps are matched from the first one on",)
    most = max(every, key=lambda facts: facts.steps)
    holder = next(i for i, file in enumerate(all_facts) if most in file)
    starts: I64 = pool.gather(pool.map(starts_of, [handles[holder]], most.pid, most.device))[0]
    shifts: list[tuple[int, ...]] = pool.gather(pool.map(shift_of, handles, starts))
    pool.change(_renumber, handles, shifts)
    return (f"{listed}: they are matched by the time at which they began",)


def _renumber(file: FileSummary, shifts: tuple[int, ...]) -> FileSummary:
    moved = zip(file.ranks, shifts, strict=True)
    return replace(file, ranks=tuple(rank.moved(ClockMove(0), shift) for rank, shift in moved))


def _excesses(
    pool: Pool,
    handles: Sequence[Handle],
    per_file: Sequence[Sequence[RankRow]],
    rows: Sequence[RankRow],
    totals: Totals,
) -> dict[int, Excess]:
    """The extra time of the ranks under suspicion; only their lines come here."""
    out = {}
    for rank in sorted(suspects(rows)):
        holder = next(i for i, file in enumerate(per_file) if any(row.rank == rank for row in file))
        row = next(row for row in per_file[holder] if row.rank == rank)
        mine: LineTimes | None = pool.gather(pool.map(lines_of, [handles[holder]], rank))[0]
        if mine is not None:
            out[rank] = excess(row, rows, mine, totals.lines)
    return out


def _how(all_facts: Sequence[Sequence[RankFacts]]) -> str:
    found = Counter(facts.how for file in all_facts for facts in file)
    (first, count), *others = found.most_common()
    return f"{first} ({count} ranks; others: {others[0][0]})" if others else first
