# SPDX-License-Identifier: Apache-2.0
"""Jobs with known truth: stragglers, clocks, missing collectives and steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders import TraceBuilder
from hypothesis import example, given, settings
from hypothesis import strategies as st
from job_builder import (
    BYTES,
    COMPUTE_NS,
    ENDS_APART_NS,
    HOST_LINE,
    KERNEL,
    SLOW_LINE,
    TRANSFER_NS,
    Job,
)
from made_traces.clock_rates import run_faster

from profiling_lab.analysis.ranks import JobResult, LocalPool, ranks, ranks_in
from profiling_lab.analysis.ranks.totals import LATE_NS
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace import Trace


def compare(paths: list[Path], **how: object) -> JobResult:
    return ranks([str(path) for path in paths], pool=LocalPool(1), **how)  # type: ignore[arg-type]


def test_parts_sum_to_the_step_and_a_balanced_job_is_called_so(tmp_path: Path) -> None:
    result = compare(Job().write(tmp_path))
    assert [row.rank for row in result.rows] == [0, 1, 2, 3] and result.missing == ()
    # Nothing hides the transfers, which take 600 us of each step.
    assert (result.verdict.kind, result.common_steps) == ("transfer", 5)
    assert result.verdict.cost_ns == pytest.approx(2 * TRANSFER_NS, rel=0.01)
    for row in result.rows:
        assert row.compute_ns + row.exposed_ns + row.copy_ns + row.idle_ns == pytest.approx(
            row.step_ns, abs=4
        )
        assert row.compute_ns == COMPUTE_NS + COMPUTE_NS // 2 and row.late == 0
        assert row.transfer_ns == pytest.approx(2 * TRANSFER_NS, rel=0.01)


def test_a_slow_line_makes_a_straggler(tmp_path: Path) -> None:
    job = Job(ranks=4, steps=5)
    job.slow_compute[3] = 2_000_000
    result = compare(job.write(tmp_path))
    found = result.verdict
    assert (found.kind, found.rank, found.by_durations) == ("straggler", 3, False)
    # It is late to the first of two collectives of a step; from the second on all are level again.
    assert (result.rows[3].late, result.rows[3].compared) == (5, 10)
    assert found.cost_ns == pytest.approx(2_000_000, rel=0.01)
    assert result.rows[3].behind_ns == pytest.approx(2_000_000, rel=0.01)
    assert result.rows[0].wait_ns == pytest.approx(2_000_000, rel=0.01)
    assert result.rows[3].wait_ns < 20_000
    assert found.excess is not None
    assert (found.excess.part, found.excess.line) == ("compute", SLOW_LINE)
    assert found.excess.line_ns == pytest.approx(2_000_000, rel=0.01)
    slowest = result.lines[0]
    assert (slowest.line, slowest.most_rank, slowest.alone, slowest.ranks) == (SLOW_LINE, 3, True, 1)
    assert found.imbalance == pytest.approx(3.5 / 2.0)


def test_waiting_that_compute_hides_is_not_exposed(tmp_path: Path) -> None:
    job = Job(ranks=3, hides=True)
    job.slow_compute[2] = 1_000_000
    result = compare(job.write(tmp_path))
    assert result.rows[0].wait_ns == pytest.approx(1_000_000, rel=0.01) and result.rows[2].late == 5
    assert result.rows[0].exposed_wait_ns < 10_000
    # What hides it holds nothing up: without what rank 2 computes more each step would be shorter.
    assert (result.verdict.kind, result.verdict.rank) == ("straggler", 2)
    assert result.verdict.cost_ns == pytest.approx(1_000_000, rel=0.01)


@settings(max_examples=25)
@given(
    ranks_=st.integers(2, 4),
    extra=st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 2)), st.integers(20_000, 3_000_000), max_size=6
    ),
    errors=st.lists(st.integers(-(10**10), 10**10), min_size=4, max_size=4),
)
@example(ranks_=2, extra={(0, 0): 20_000}, errors=[2926, 508, 0, 0])
@example(ranks_=4, extra={(0, 1): 46_158, (1, 1): 46_140}, errors=[0, 0, 0, 26_732_002])  # who was last?
@example(ranks_=2, extra={(0, 1): 20_000, (1, 1): 30_010}, errors=[0, 700, 0, 0])  # late, or not yet?
def test_against_an_oracle(
    tmp_path_factory: pytest.TempPathFactory,
    ranks_: int,
    extra: dict[tuple[int, int], int],
    errors: list[int],
) -> None:
    """Whatever the clocks: who was last, how long each waited, and what that cost, as it truly was."""
    job = Job(ranks=ranks_, steps=3, extra=extra)
    job.clock_error.update(enumerate(errors))
    result = compare(job.write(tmp_path_factory.mktemp("oracle")))
    course = [[m for m in moments if m.what == "collective"] for moments in job.moments()]
    # Clocks are put together to within the microsecond by which ranks leave a collective apart; a rank's mean
    # distance from the others is rounded down to a nanosecond.
    accuracy = 2 * (ranks_ * ENDS_APART_NS + 1)
    waits, cost = [0] * ranks_, [0] * ranks_
    surely, perhaps = [0] * ranks_, [0] * ranks_  # the collectives to which a rank was late
    for met in zip(*course, strict=True):
        order = sorted(range(ranks_), key=lambda rank: -met[rank].start_ns)
        last, second = (met[rank].start_ns for rank in order[:2])
        others = [met[rank].start_ns for rank in order[1:]]
        for rank in range(ranks_):
            waits[rank] += last - met[rank].start_ns
        late_by = last - sum(others) / len(others)
        if late_by > LATE_NS:
            cost[order[0]] += last - second
        if late_by > LATE_NS - accuracy:
            for rank in order:
                perhaps[rank] += last - met[rank].start_ns <= accuracy
        if late_by > LATE_NS + accuracy and last - second > accuracy:
            surely[order[0]] += 1
    error = 3 * job.collectives * accuracy
    for row in result.rows:
        assert row.compared == 6
        assert surely[row.rank] <= row.late <= perhaps[row.rank]
        assert 3 * row.wait_ns == pytest.approx(waits[row.rank], abs=error)
        assert 3 * row.cost_ns == pytest.approx(cost[row.rank], abs=error)


def test_ranks_that_take_turns_are_no_stragglers(tmp_path: Path) -> None:
    result = compare(Job(ranks=4, steps=8, collectives=1, turns_ns=1_000_000).write(tmp_path))
    assert (result.verdict.kind, result.verdict.rank) == ("waiting", None)
    assert [row.late for row in result.rows] == [2, 2, 2, 2]
    # Three of four ranks wait 1 ms in each step.
    assert result.verdict.cost_ns == pytest.approx(750_000, rel=0.02)
    assert any("no communicator is named" in note for note in result.notes)


def test_groups_that_no_file_names_are_not_taken_for_one(tmp_path: Path) -> None:
    """Two pairs that make their collectives at different times, in one file: no collective has four ranks."""
    builder = TraceBuilder(form="nsys")
    for step in range(4):
        for rank in range(4):
            begin = 1_000_000 + step * 1_000_000 + (rank // 2) * 400_000
            builder.now_ns = begin - 9000
            how = {"pid": 100 + rank, "device": rank, "start_ns": begin}
            builder.launch("gemm", 1000, **how).launch(KERNEL, 50_000, **how | {"start_ns": begin + 2000})
    result = compare([builder.write(tmp_path / "node.sqlite")])
    (row,) = result.collectives
    assert (row.compared, row.apart) == (0, 4) and result.verdict.by_durations
    assert row.wait_ns is None and row.last_rank is None


def test_late_to_one_of_many_collectives_in_each_step_is_enough(tmp_path: Path) -> None:
    job = Job(ranks=3, steps=4, collectives=6)
    job.slow_compute[1] = 800_000
    result = compare(job.write(tmp_path))
    assert (result.rows[1].late, result.rows[1].compared, result.rows[1].late_steps) == (4, 24, 4)
    assert (result.verdict.kind, result.verdict.rank) == ("straggler", 1)


def test_late_in_one_step_is_not(tmp_path: Path) -> None:
    result = compare(Job(ranks=3, steps=6, extra={(1, 2): 5_000_000}).write(tmp_path))
    assert (result.rows[1].late, result.rows[1].late_steps) == (1, 1)
    assert (result.verdict.kind, result.verdict.rank) == ("waiting", None)
    (row,) = result.collectives
    assert row.worst[0].rank == 1 and row.worst[0].behind_ns == pytest.approx(5_000_000, rel=0.01)


def test_a_late_host_makes_a_straggler(tmp_path: Path) -> None:
    job = Job(ranks=3, steps=4, collectives=1)
    job.late_host[1] = 900_000
    found = compare(job.write(tmp_path)).verdict
    assert (found.kind, found.rank) == ("straggler", 1)
    assert found.excess is not None and found.excess.part == "idle"
    assert found.excess.line == HOST_LINE and found.excess.cause


@pytest.mark.parametrize("calendar", [True, False])
def test_clocks_are_aligned_by_what_all_leave_together(tmp_path: Path, calendar: bool) -> None:
    job = Job(ranks=4, calendar=calendar)
    job.slow_compute[2] = 1_500_000
    job.clock_error.update({1: 5_000_000_000, 2: -70_000_000, 3: 3_000})
    result = compare(job.write(tmp_path))
    assert result.clocks.state == "collectives" and result.clocks.accuracy_ns < 2_000
    if calendar:
        assert result.clocks.moved_ns == pytest.approx(5_070_000_000, abs=10_000)
    assert (result.verdict.kind, result.verdict.rank) == ("straggler", 2)
    assert result.verdict.cost_ns == pytest.approx(1_500_000, rel=0.01)
    (row,) = result.collectives
    assert (row.compared, row.apart, row.incomplete) == (10, 0, 0)
    assert (row.last_rank, row.last_frac) == (2, 0.5)
    assert [late.rank for late in row.worst] == [2, 2, 2] and row.worst[0].number == 0


def test_clocks_that_run_at_other_rates_are_aligned(tmp_path: Path) -> None:
    """50 ppm are 35 us over the recording, far more than ranks leave a collective apart."""
    rates = {0: 0.0, 1: 5e-5, 2: -2e-5, 3: 1e-5}
    job = Job(ranks=4, steps=200)
    job.slow_compute[2] = 1_500_000
    job.clock_error.update({1: 400_000, 3: -1_000_000_000})
    paths = job.write(tmp_path)
    for rank, rate in rates.items():
        run_faster(paths[rank], rate)
    result = compare(paths)
    assert result.clocks.rate == pytest.approx(7e-5, rel=0.03)
    assert result.clocks.accuracy_ns is not None and result.clocks.accuracy_ns < 2_000
    assert (result.verdict.kind, result.verdict.rank) == ("straggler", 2)
    assert result.verdict.cost_ns == pytest.approx(1_500_000, rel=0.01)


def test_one_rate_is_left_alone(tmp_path: Path) -> None:
    job = Job(ranks=4, steps=200)
    job.clock_error.update({1: 400_000, 3: -1_000_000_000})
    assert compare(job.write(tmp_path)).clocks.rate == 0.0


def test_a_rank_without_collectives_keeps_its_clock(tmp_path: Path) -> None:
    job = Job(ranks=3)
    job.slow_compute[0] = 1_000_000
    job.clock_error.update({1: 400_000, 2: 9_000_000})
    job.lacks = {(2, step, number) for step in range(5) for number in range(2)}
    result = compare(job.write(tmp_path))
    assert (result.clocks.state, result.clocks.own) == ("collectives", 1)
    assert result.clocks.moved_ns == pytest.approx(400_000, abs=2_000)
    assert (result.verdict.kind, result.verdict.rank) == ("straggler", 0)
    assert result.rows[2].wait_ns is None and result.rows[2].missing == 10


def test_the_same_in_one_file(tmp_path: Path) -> None:
    job = Job(ranks=3)
    job.slow_compute[1] = 1_000_000
    result = compare([job.write_one(tmp_path / "node.sqlite")])
    assert result.clocks.state == "one" and "nothing names them" in result.said_by
    assert [(row.rank, row.facts.pid, row.facts.device) for row in result.rows] == [
        (0, 100, 0), (1, 101, 1), (2, 102, 2),
    ]  # fmt: skip
    assert (result.verdict.kind, result.verdict.rank) == ("straggler", 1)


@pytest.mark.parametrize("sequence", [True, False])
def test_torch_profiler_says_group_sequence_and_size(tmp_path: Path, sequence: bool) -> None:
    job = Job(ranks=4)
    job.slow_compute[3] = 2_000_000
    job.clock_error[0] = 40_000_000
    result = compare(job.write_torch(tmp_path, sequence))
    assert "recordings say" in result.said_by and result.world_size == 4
    (row,) = result.collectives
    assert row.series.members == (0, 1, 2, 3) and row.series.numbered == ("sequence" if sequence else "order")
    assert (row.compared, row.size_bytes, row.ranks) == (10, BYTES, 4)
    # 2 (n-1)/n of 4 MiB in 300 us.
    assert row.bus_bytes_per_s == pytest.approx(1.5 * BYTES / (TRANSFER_NS / 1e9), rel=0.02)
    assert (result.verdict.kind, result.verdict.rank) == ("straggler", 3)


@pytest.mark.parametrize("listed", [True, False])
def test_large_groups_whose_members_torch_shortens(tmp_path: Path, listed: bool) -> None:
    job = Job(ranks=33, steps=2, lists_groups=listed)
    job.slow_compute[32] = 1_000_000
    result = compare(job.write_torch(tmp_path))
    (row,) = result.collectives
    assert row.series.members == (tuple(range(33)) if listed else ())
    assert (row.series.size, row.ranks, row.compared) == (33, 33, 4)
    assert (result.verdict.kind, result.verdict.rank) == ("straggler", 32)


def test_a_missing_collective_is_said_and_the_rest_compared(tmp_path: Path) -> None:
    job = Job(ranks=3, steps=6)
    job.lacks = {(1, 2, 1)}
    result = compare(job.write(tmp_path))
    (row,) = result.collectives
    assert (row.occurrences, row.compared, row.incomplete) == (12, 11, 1)
    assert [r.missing for r in result.rows] == [0, 1, 0]
    assert "rank 1: lacks 1 of the collectives that others have" in result.notes


def test_the_same_note_names_its_ranks_together(tmp_path: Path) -> None:
    job = Job(ranks=12, steps=2)
    job.lacks = {(rank, 1, 1) for rank in range(1, 12)}
    (note,) = (note for note in compare(job.write(tmp_path)).notes if "lacks" in note)
    assert note.startswith("ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more: lacks 1 of")


def test_recordings_that_begin_later_are_matched_by_time(tmp_path: Path) -> None:
    job = Job(ranks=3, steps=8)
    job.begins_late[2] = 2
    job.slow_compute[0] = 800_000
    result = compare(job.write(tmp_path))
    assert result.common_steps == 6 and any("6 to 8 steps" in note for note in result.notes)
    assert [row.ranks for row in result.steps] == [2, 2, 3, 3, 3, 3, 3, 3]
    assert (result.verdict.kind, result.verdict.rank) == ("straggler", 0)
    assert result.clocks.moved_ns < 10_000


def test_ranks_that_are_missing_and_ranks_that_were_asked_for(tmp_path: Path) -> None:
    paths = Job(ranks=5).write(tmp_path, facts=True)
    result = compare([paths[0], paths[1], paths[4]])
    assert result.missing == (2, 3) and result.world_size == 5
    assert [row.rank for row in compare(paths, only=(1, 4)).rows] == [1, 4]
    assert [row.rank for row in compare(paths, devices=(0, 2)).rows] == [0, 2]
    with pytest.raises(UsageError, match="--rank 7: the job has rank 0, 1, 2, 3, 4"):
        compare(paths, only=(7,))
    with pytest.raises(NotEnoughDataError, match="at least two ranks"):
        compare(paths, only=(1,))


def test_files_of_different_jobs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    a = Job(ranks=2).write(tmp_path / "a", facts=True)
    b = Job(ranks=3).write(tmp_path, facts=True)
    with pytest.raises(NotEnoughDataError, match="different jobs"):
        compare([a[0], b[1]])
    with pytest.raises(NotEnoughDataError, match=r"rank 1 is there twice: run\.rank1\.sqlite and copy"):
        compare([*b, Path(shutil.copy(b[1], tmp_path / "copy.sqlite"))])


def test_recordings_of_different_times_are_said(tmp_path: Path) -> None:
    job = Job(ranks=2)
    job.clock_error[1] = 3_600_000_000_000
    assert any("of different runs" in note for note in compare(job.write(tmp_path)).notes)


def test_without_collectives_durations_decide(tmp_path: Path) -> None:
    job = Job(ranks=3, collectives=0)
    job.slow_compute[1] = 700_000
    result = compare(job.write(tmp_path))
    assert (result.verdict.kind, result.verdict.rank, result.verdict.by_durations) == ("uneven", 1, True)
    assert result.clocks.state == "wall" and result.collectives == ()
    assert all(row.wait_ns is None and row.late_frac is None for row in result.rows)
    assert result.verdict.excess is not None and result.verdict.excess.line == SLOW_LINE


def test_fsdp_inference_has_two_equal_ranks_that_copy(captures: Path) -> None:
    result = compare([captures / "fsdp_inference_2xh100.sqlite"])
    assert [(row.rank, row.facts.pid, row.facts.device) for row in result.rows] == [(0, 111, 0), (1, 112, 1)]
    assert result.verdict.kind == "balanced" and result.verdict.imbalance < 1.01
    for row in result.rows:
        assert row.copy_ns > 0.95 * row.step_ns and row.communication_ns == 0
        assert row.idle_ns < 0.01 * row.step_ns
    assert sum(row.facts.gpu_ns for row in result.rows) == pytest.approx(1925.7e6, rel=1e-3)


def test_a_rank_without_steps_is_said(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys")
    for step in range(3):
        begin = 2_000_000 + step * 100_000
        builder.now_ns = begin - 9000
        builder.launch("gemm", 10_000, start_ns=begin, pid=100)
        builder.range("training_step", begin - 9000, begin + 50_000)
        builder.launch("gemm", 10_000, start_ns=begin, pid=101, device=1)
    result = compare([builder.write(tmp_path / "node.sqlite")])
    assert [row.steps for row in result.rows] == [3, 0] and result.common_steps == 3
    assert any(note.startswith("rank 1: it has no steps") for note in result.notes)
    assert result.step_ns == result.rows[0].step_ns > 0 and result.verdict.kind == "unknown"


def test_ranks_of_an_open_file(tmp_path: Path) -> None:
    job = Job(ranks=2)
    job.slow_compute[0] = 1_000_000
    with Trace.open(job.write_one(tmp_path / "node.sqlite")) as trace:
        assert (ranks_in(trace).verdict.kind, ranks_in(trace).verdict.rank) == ("straggler", 0)


def test_ranks_leave_an_all_to_all_at_times_of_their_own(tmp_path: Path) -> None:
    """Matched by its ends the ranks blamed each other: who left later seemed to have come earlier."""
    job = Job(ranks=2, steps=6, collectives=1, all_to_all={(0, step): 1_000_000 for step in range(6)})
    job.slow_compute[1] = 3_000_000
    result = compare(job.write_torch(tmp_path))
    assert result.clocks.state == "wall"
    assert (result.verdict.kind, result.verdict.rank) == ("straggler", 1)
    # Rank 0 begins each step 1 ms later: that would be left of what rank 1 is late by.
    assert result.verdict.cost_ns == pytest.approx(2_000_000, rel=0.01)


def test_all_to_alls_do_not_move_clocks(tmp_path: Path) -> None:
    job = Job(ranks=2, steps=6, collectives=1, all_to_all={(0, step): 3_000_000 for step in range(6)})
    assert compare(job.write_torch(tmp_path)).clocks.moved_ns == 0
