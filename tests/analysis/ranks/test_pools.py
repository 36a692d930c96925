# SPDX-License-Identifier: Apache-2.0
"""In this process and in several the answer is the same; what is read is small."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rank_that_dies import die_or_read
from table_folders import to_folder

from profiling_lab.analysis.ranks import JobResult, LocalPool, Options, ranks, summarize
from profiling_lab.analysis.ranks import pools as pools_module
from profiling_lab.analysis.ranks.clock_move import ClockMove
from profiling_lab.analysis.ranks.reading import FileSummary, files_of, read_file
from profiling_lab.analysis.ranks.totals import merge_totals, totals_of
from profiling_lab.trace import Trace

RECORDED = Path(__file__).resolve().parents[3] / "profiling_lab/exercises/e17_python_backtrace/recorded"
RANKS = 64


def test_64_ranks(serial: JobResult) -> None:
    assert (serial.verdict.kind, serial.verdict.rank) == ("straggler", 41)
    assert len(serial.rows) == RANKS and serial.rows[7].missing == 1
    assert serial.clocks.moved_ns == pytest.approx((RANKS - 1) * 1_000_000, rel=1e-3)
    (row,) = serial.collectives
    # Without the first of two, rank 7's second one meets the others' first, which is impossible.
    assert (row.ranks, row.compared, row.apart, row.incomplete) == (RANKS, 4, 1, 1)


def test_processes_give_the_same(many: list[str], serial: JobResult) -> None:
    counts: list[int] = []
    result = ranks(many, pool=LocalPool(2), done=counts.append)
    assert result == serial and counts == list(range(1, len(many) + 1))


def test_a_process_that_is_killed_costs_its_own_file_only(
    many: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools_module, "read_file", die_or_read)
    handles = LocalPool(2).read(many[:3], Options(), lambda _: None)
    assert [bool(handle.ranks) for handle in handles] == [True, False, True]
    failure = handles[1].failure
    assert failure is not None and "was killed" in failure.sentence and failure.exit_code == 4


def test_a_summary_is_small_whatever_the_recording() -> None:
    with Trace.open(RECORDED / "demo_h200.sqlite") as trace:
        (summary,) = summarize(trace)
    assert len(pickle.dumps(summary)) < 32_000
    assert summary.facts.steps == 4 and summary.parts_ns[:, :4].sum(axis=1).tolist() == pytest.approx(
        (summary.end_ns - summary.start_ns).tolist()
    )


def test_merged_totals_do_not_grow_with_the_ranks(many: list[str]) -> None:
    def size(count: int) -> int:
        read = [read_file(path, Options()) for path in many[:count]]
        return len(pickle.dumps(merge_totals([totals_of(_numbered(file, i)) for i, file in enumerate(read)])))

    assert size(40) < 1.02 * size(12)


def _numbered(file: FileSummary, rank: int) -> FileSummary:
    zero = file.ranks[0].facts.span_ns[0]
    return file.each(lambda r: replace(r.moved(ClockMove(-zero)), facts=replace(r.facts, rank=rank)))


def test_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("r10.sqlite", "r2.sqlite", "notes.txt", "r1.json.gz", "a.nsys-rep"):
        (tmp_path / name).touch()
    found: list[Any] = [Path(path).name for path in files_of([str(tmp_path)])]
    assert found == ["r1.json.gz", "r2.sqlite", "r10.sqlite"]
    twice = files_of([str(tmp_path / "r2.sqlite"), str(tmp_path)])
    assert len(twice) == 3


def test_folders_of_tables_are_traces(many: list[str], tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for path in many[:2]:
        to_folder(Path(path), tmp_path / "job" / Path(path).stem)
    assert [Path(path).name for path in files_of([str(tmp_path / "job")])] == ["run.rank0", "run.rank1"]
    assert files_of([str(tmp_path / "job" / "run.rank0")]) == [str(tmp_path / "job" / "run.rank0")]
    result = ranks(files_of([str(tmp_path / "job")]), pool=LocalPool(1))
    assert [row.rank for row in result.rows] == [0, 1] and result.rows[0].compared == 6
