# SPDX-License-Identifier: Apache-2.0
"""The collectives of one file or of all ranks of a job, which are matched as `ranks` matches them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiling_lab.analysis.collectives.bandwidth import Arrivals, Bandwidth
from profiling_lab.analysis.collectives.calls import calls_of, with_group_sizes
from profiling_lab.analysis.collectives.links import Links
from profiling_lab.analysis.collectives.rows import (
    GROUPINGS,
    By,
    CollectiveSum,
    busy_and_hidden,
    sums,
)
from profiling_lab.analysis.ranks.assignment import Assignments
from profiling_lab.analysis.ranks.clocks import Clocks
from profiling_lab.analysis.ranks.job import Joined, check_own, joined
from profiling_lab.analysis.ranks.notes import notes_by_ranks
from profiling_lab.analysis.ranks.options import Options
from profiling_lab.analysis.ranks.pools import Done, LocalPool, Pool
from profiling_lab.analysis.ranks.reading import Failure, FileSummary
from profiling_lab.analysis.ranks.summary import RankFacts, RankSummary
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass, replace


@dataclass(frozen=True, slots=True)
class CollectivesResult:
    """Rows by exposed time, the most first."""

    rows: tuple[CollectiveSum, ...]
    total_matched: int
    by: By
    ranks: tuple[RankFacts, ...]
    calls: int
    """one rank's part in one collective is a call"""
    sized: int
    """calls whose bytes are known"""
    grouped: int
    """calls whose group size is known"""
    busy_ns: int
    """in which a rank communicated, summed over ranks: once, where it did so several times at once"""
    hidden_ns: int
    """of it, while its GPU computed"""
    arrivals: Arrivals
    """of all collectives that could be compared: waiting and transfer"""
    assignments: Assignments
    clocks: Clocks
    files: int
    """that could be read"""
    window: tuple[tuple[str, str], ...]
    failures: tuple[Failure, ...]
    notes: tuple[str, ...]
    links: Links | None = None

    @property
    def exposed_ns(self) -> int:
        return self.busy_ns - self.hidden_ns


def collectives(
    paths: Sequence[str],
    by: By = "line",
    options: Options | None = None,
    limit: int | None = None,
    pool: Pool | None = None,
    done: Done = lambda _: None,
    only: tuple[int, ...] = (),
    devices: tuple[int, ...] = (),
    links: Links | None = None,
) -> CollectivesResult:
    """Sum the collectives of the ranks in these files, which are of one job.

    by: what distinguishes rows; limit: the most rows; pool, done, only, devices: see `ranks`; links: what
    the links of the job's machine reach, to compare with.

    Raises UsageError for ranks that there are not and for links of other GPUs, NotEnoughDataError if there
    is no collective or the files belong to several jobs, UnreadableInputError if no file could be read.
    """
    if by not in GROUPINGS:
        raise UsageError(f"by must be one of {', '.join(GROUPINGS)}, not {by!r}")
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    pool = pool or LocalPool()
    options = replace(options or Options(), each_collective=True)
    job = joined(pool, pool.read(list(paths), options, done), only, devices, least=1)
    files: list[FileSummary] = pool.gather(job.handles)
    ranks = sorted((rank for file in files for rank in file.ranks), key=lambda rank: rank.facts.rank or 0)
    facts = tuple(rank.facts for rank in ranks)
    check_own(options.own, facts)
    if links is not None:
        _check_same_gpu(links, facts)
    if not any(rank.collectives.series or rank.collectives.alone for rank in ranks):
        raise NotEnoughDataError(_none(facts))
    calls = calls_of(ranks, job.met)
    if len(ranks) == job.assignments.world_size:
        calls = with_group_sizes(calls)
    rows, total = sums(calls, by, limit, links)
    busy, hidden = busy_and_hidden(calls, np.zeros(len(calls), dtype=np.int64), 1)
    sizes = np.array([series.size for series in calls.all_series])
    return CollectivesResult(
        rows=rows,
        total_matched=total,
        by=by,
        ranks=facts,
        calls=len(calls),
        sized=int((calls.size_bytes >= 0).sum()),
        grouped=int((sizes[calls.series] > 0).sum()),
        busy_ns=busy[0],
        hidden_ns=hidden[0],
        arrivals=Bandwidth(calls).after_arrival(np.flatnonzero(calls.compared)),
        assignments=job.assignments,
        clocks=job.clocks,
        files=len(job.chosen),
        window=options.asked,
        failures=job.failures,
        notes=_notes(job, ranks),
        links=links,
    )


def _check_same_gpu(links: Links, facts: Sequence[RankFacts]) -> None:
    """Raises UsageError if the links join other GPUs than those of the recordings."""
    known = {rank.gpu for rank in facts if rank.gpu}
    if known and links.gpu not in known:
        recorded = ", ".join(sorted(known))
        raise UsageError(f"the links were measured between {links.gpu}, but the recording is from {recorded}")


def _none(facts: Sequence[RankFacts]) -> str:
    operations = sum(rank.operations for rank in facts)
    where = facts[0].path if len({rank.path for rank in facts}) == 1 else f"{len(facts)} ranks"
    return (
        f"{where}: no collectives: none of the {operations:,} GPU operations is a kernel of NCCL or of "
        "another communication library"
    )


def _notes(job: Joined, ranks: Sequence[RankSummary]) -> tuple[str, ...]:
    """What limits the answer."""
    notes = [(rank.facts.rank or 0, note) for rank in ranks for note in rank.facts.notes]
    if len(ranks) == 1:
        return notes_by_ranks(notes)
    notes += [
        (
            rank.facts.rank or 0,
            f"collectives outside of steps: {outside:,}; they are not matched with those of other ranks",
        )
        for rank in ranks
        if (outside := rank.collectives.outside)
    ]
    return (*job.notes, *notes_by_ranks(notes))
