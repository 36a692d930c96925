# SPDX-License-Identifier: Apache-2.0
"""What many ranks take: the summary of each, and little that grows with them besides."""

from __future__ import annotations

import gc
import pickle
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
from job_builder import Job

from profiling_lab.analysis.ranks import LocalPool, Options, Pool, ranks
from profiling_lab.analysis.ranks import collectives as collectives_module
from profiling_lab.analysis.ranks import totals as totals_module
from profiling_lab.analysis.ranks.collectives import AT_MOST, PER_STEP, Occurrences
from profiling_lab.analysis.ranks.kinds import RankSet, Series
from profiling_lab.analysis.ranks.pools import WIDTH, Done, Handle
from profiling_lab.analysis.ranks.reading import FileSummary, read_file
from profiling_lab.analysis.ranks.summary import RankSummary

SUMMARY_BYTES = 400_000
"""of one rank at most, as docs/architecture/many_ranks.md says"""
COMPARING_BYTES = 450_000
"""what another rank takes while a job is compared: little more than its summary"""


class Made(LocalPool):
    """Ranks that were not read: each is what `make` says."""

    def __init__(self, make: Callable[[int], FileSummary]) -> None:
        super().__init__(1)
        self._make = make

    def read(self, paths: Sequence[str], options: Options, done: Done) -> list[Handle]:
        return [self._make(rank) for rank in range(len(paths))]


@pytest.fixture
def one(tmp_path: Path) -> RankSummary:
    """Of a job of two ranks, whose all-reduces are in one series."""
    paths = Job(ranks=2, steps=4).write(tmp_path)
    (summary,) = read_file(str(paths[0]), Options()).ranks
    return summary


def _as_rank(summary: RankSummary, rank: int, found: dict[Series, Occurrences]) -> FileSummary:
    facts = replace(summary.facts, rank=rank, said_by="name")
    kept = replace(summary.collectives, series=found)
    return FileSummary(summary.facts.path, (replace(summary, facts=facts, collectives=kept),))


def _full(summary: RankSummary, count: int) -> Occurrences:
    """As many collectives as are kept, in the last step."""
    start = int(summary.start_ns[-1]) + np.arange(count, dtype=np.int64) * 100
    return Occurrences(
        number=int(summary.number[-1]) * PER_STEP + np.arange(count, dtype=np.int64),
        start_ns=start,
        end_ns=start + 50,
        size_bytes=np.full(count, 1 << 20),
        exposed_ns=np.full(count, 50),
        place=np.full(count, -1, dtype=np.int32),
        whole=np.ones(count, dtype=bool),
    )


def _peak_bytes(one: RankSummary, count: int) -> int:
    (series,) = one.collectives.series
    gc.collect()
    tracemalloc.start()
    result = ranks(
        ["made"] * count, pool=Made(lambda rank: _as_rank(one, rank, {series: _full(one, AT_MOST)}))
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(result.rows) == count and result.rows[0].compared == AT_MOST
    return peak


def test_another_rank_takes_no_more_than_is_said(one: RankSummary) -> None:
    (series,) = one.collectives.series
    assert len(pickle.dumps(_as_rank(one, 0, {series: _full(one, AT_MOST)}))) < SUMMARY_BYTES
    few, many = WIDTH**2, 2 * WIDTH**2  # of both nearly as many parts are merged at once
    each = (_peak_bytes(one, many) - _peak_bytes(one, few)) / (many - few)
    assert each < COMPARING_BYTES


def test_merging_holds_few_parts_at_once() -> None:
    class Part:
        pass

    alive: WeakSet[Part] = WeakSet()
    most = 0

    def made(_: int) -> Part:
        nonlocal most
        part = Part()
        alive.add(part)
        most = max(most, len(alive))
        return part

    count = WIDTH**3 + 5
    LocalPool(1).merge(lambda parts: made(len(parts)), list(range(count)), made)
    assert WIDTH <= most <= 4 * WIDTH + 1


@pytest.mark.parametrize("count", [1, 2, WIDTH - 1, WIDTH, WIDTH + 1, WIDTH**2, WIDTH**2 + WIDTH + 1])
def test_merging_takes_each_once(count: int) -> None:
    merged = LocalPool(1).merge(lambda parts: list(chain(*parts)), list(range(count)), lambda value: [value])
    assert sorted(merged) == list(range(count))


def test_groups_are_compared_once_for_all_ranks(one: RankSummary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs, and a group of all: there are more groups the more ranks there are."""
    asked: list[Series] = []
    whole = totals_module._meeting

    def counting(totals: Any, series: Series, comparison: Any, here: int) -> Any:
        asked.append(series)
        return whole(totals, series, comparison, here)

    monkeypatch.setattr(totals_module, "_meeting", counting)
    count = 24
    (series,) = one.collectives.series
    first = _full(one, 6)

    def make(rank: int) -> FileSummary:
        groups = {f"pair {rank // 2}": range(rank // 2 * 2, rank // 2 * 2 + 2), "all": range(count)}
        named = {
            replace(series, group=name, group_ranks=RankSet.of(members), size=len(members)): first
            for name, members in groups.items()
        }
        return _as_rank(one, rank, named)

    result = ranks(["made"] * count, pool=Made(make))
    assert len(asked) == len(set(asked)) == count // 2 + 1
    assert {row.compared for row in result.rows} == {12} and {row.missing for row in result.rows} == {0}
    assert {row.ranks for row in result.collectives} == {2, count}


def test_a_rank_without_the_collectives_of_its_group_misses_them(one: RankSummary) -> None:
    (series,) = one.collectives.series
    mine = replace(series, group="all", group_ranks=RankSet.of(range(4)), size=4)
    result = ranks(
        ["made"] * 4, pool=Made(lambda rank: _as_rank(one, rank, {} if rank == 2 else {mine: _full(one, 6)}))
    )
    assert [row.missing for row in result.rows] == [0, 0, 6, 0]


@pytest.mark.parametrize(
    "members", [(), (3,), (0, 1, 2, 3), (0, 8, 16), (5, 3, 1), (0, 1, 2, 9, 4), (7, 7), (2, 5, 5, 5, 8)]
)
def test_rank_sets_are_what_they_were_made_of(members: tuple[int, ...]) -> None:
    made = RankSet.of(members)
    assert tuple(made) == members and len(made) == len(members)
    assert [rank in made for rank in range(20)] == [rank in members for rank in range(20)]


def test_groups_of_many_ranks_are_small() -> None:
    assert len(pickle.dumps(RankSet.of(range(3, 10_000, 8)))) < 200


@pytest.fixture
def long(tmp_path: Path) -> list[str]:
    """Rank 2 is slower in all steps; rank 1's recording begins three steps later."""
    job = Job(ranks=3, steps=14, collectives=3)
    job.slow_compute[2] = 800_000
    job.begins_late[1] = 3
    return list(map(str, job.write(tmp_path)))


def test_the_last_steps_are_kept_of_long_recordings(long: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not kept changes neither who is late, nor what that costs per step, nor what is missing."""
    pool: Pool = LocalPool(1)
    whole = ranks(long, pool=pool)
    monkeypatch.setattr(collectives_module, "AT_MOST", 20)
    part = ranks(long, pool=pool)
    assert (
        (part.verdict.kind, part.verdict.rank) == (whole.verdict.kind, whole.verdict.rank) == ("straggler", 2)
    )
    assert part.verdict.cost_ns == whole.verdict.cost_ns
    assert [row.compared for row in whole.rows] == [33] * 3 and [row.compared for row in part.rows] == [
        18
    ] * 3
    assert {row.missing for row in part.rows} == {0} and {row.compared_steps for row in part.rows} == {6}
    assert [row.steps for row in part.rows] == [row.steps for row in whole.rows] == [11] * 3
    for ours, theirs in zip(part.rows, whole.rows, strict=True):
        assert ours.wait_ns == pytest.approx(theirs.wait_ns, rel=0.02)
        assert ours.cost_ns == pytest.approx(theirs.cost_ns, rel=0.02)
    (row,) = part.collectives
    assert (row.compared, row.incomplete, row.apart) == (18, 0, 0)
    assert any("in its last 6 steps" in note and "are left out" in note for note in part.notes)


def test_ranks_that_keep_other_steps_are_compared_where_both_have_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 lacks some collectives of the end, so that it keeps more steps."""
    job = Job(ranks=3, steps=12, collectives=3)
    job.lacks = {(0, 11, 0), (0, 11, 1), (0, 11, 2)}
    paths = list(map(str, job.write(tmp_path)))
    monkeypatch.setattr(collectives_module, "AT_MOST", 10)
    result = ranks(paths, pool=LocalPool(1))
    assert [row.compared_steps for row in result.rows] == [4, 3, 3]
    assert [row.missing for row in result.rows] == [3, 0, 0]
    (row,) = result.collectives
    assert (row.occurrences, row.compared, row.incomplete) == (9, 6, 3)


def test_a_step_with_more_than_is_kept_is_kept_from_its_begin(
    long: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives_module, "AT_MOST", 2)
    result = ranks(long, pool=LocalPool(1))
    (row,) = result.collectives
    assert (row.occurrences, row.compared) == (2, 2) and {each.missing for each in result.rows} == {0}
