# SPDX-License-Identifier: Apache-2.0
"""Jobs that are not whole: what is missing is said in a sentence, and the rest is compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_traces import jobs
from made_traces.cluster import Cluster, Conditions
from package_root import PACKAGE_ROOT

from profiling_lab.analysis.ranks import JobResult, LocalPool, ranks
from profiling_lab.analysis.ranks.worker import WorkerDied, in_processes
from profiling_lab.errors import NotEnoughDataError

HEALTHY = Conditions()
LATE = Conditions(extra_kernels={(1, jobs.ATTENTION): (2, 350_000)})


def cluster(ranks: int = 3, conditions: Conditions = LATE) -> Cluster:
    return Cluster(ranks, jobs.data_parallel, conditions).run()


def compared(paths: list[str]) -> JobResult:
    return ranks(paths, pool=LocalPool(1))


def one_note(result: JobResult, words: str) -> str:
    (note,) = (note for note in result.notes if words in note)
    return note


def names_the_line(result: JobResult) -> bool:
    blame = result.verdict.blame
    return blame is not None and (blame.rank, blame.line) == (1, f"/app/{jobs.ATTENTION}")


def test_a_missing_rank(tmp_path: Path) -> None:
    paths = cluster(4).write(tmp_path)
    result = compared([paths[0], paths[1], paths[3]])
    assert result.missing == (2,) and names_the_line(result)
    note = one_note(result, "missing")
    assert note == "recording is missing (rank 2): what the others wait for may be there"


@pytest.mark.parametrize("clocks_ns", [(0,) * 8, (0, 0, 1_000_000_000, 0) * 2])
def test_a_rank_that_was_killed(clocks_ns: tuple[int, ...], tmp_path: Path) -> None:
    """Its clock may be a second off: then the time at which its steps began says nothing."""
    made = Cluster(3, jobs.data_parallel, LATE, clocks_ns=clocks_ns).run()
    killed_ns = made.all[2].step_ns[5] + 3_000_000
    result = compared(made.write(tmp_path, until_ns={2: killed_ns}))
    assert result.common_steps == 5 and names_the_line(result)
    assert one_note(result, "recording ends").startswith("rank 2: its recording ends 4")
    assert "5 to 8 steps" in one_note(result, "to 8 steps")


def test_files_of_different_jobs(tmp_path: Path) -> None:
    first, second = cluster(3).write(tmp_path / "a"), cluster(4).write(tmp_path / "b")
    with pytest.raises(NotEnoughDataError, match=r"different jobs: run\.rank0\S+ is of 3 ranks, .* of 4"):
        compared([first[0], second[1]])


def test_files_of_different_programs(tmp_path: Path) -> None:
    """Of as many ranks: no collective of one is in the other."""
    first = Cluster(2, jobs.pipeline, HEALTHY).run().write(tmp_path / "a")
    second = Cluster(2, jobs.fully_sharded, HEALTHY).run().write(tmp_path / "b")
    result = compared([first[0], second[1]])
    assert "no collective of rank 0 is in the recording of rank 1" in one_note(result, "different programs")
    assert not result.verdict.found or result.verdict.by_durations


def test_different_step_counts(tmp_path: Path) -> None:
    made = cluster()
    result = compared(made.write(tmp_path, until_ns={0: made.all[0].step_ns[7]}))
    assert result.common_steps == 6 and "6 to 8 steps" in one_note(result, "steps:")
    assert names_the_line(result)


def test_a_rank_without_collectives(tmp_path: Path) -> None:
    paths = cluster().write(tmp_path)
    alone = Cluster(1, jobs.data_parallel, HEALTHY).run()
    for rank in alone.all:
        rank.number = 2
        rank.calls = [c for c in rank.calls if c.operation is None or c.operation.meeting is None]
    alone.ranks = 3
    result = compared([*paths[:2], *alone.write(tmp_path / "alone")])
    assert names_the_line(result)
    assert "rank 2: its recording has no collectives" in one_note(result, "no collectives")


SCRIPT = """\
import sys
import profiling_lab
print("begun")
table = profiling_lab.ranks(sys.argv[1], jobs=2)
print(table.result.verdict.rank, table.result.verdict.blame.line)
"""


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Processes that import the main module again would run the script once more in each."""
    cluster(2).write(tmp_path / "job")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "job")],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},  # not the source tree, which may not be built
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["begun", f"1 /app/{jobs.ATTENTION}"]


def test_processes_answer_in_order_and_raise_what_functions_raise() -> None:
    counts: list[int] = []
    assert in_processes(divmod, [(7, 2), (9, 4), (8, 8)], 2, counts.append) == [(3, 1), (2, 1), (1, 0)]
    assert counts == [1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        in_processes(divmod, [(7, 2), (9, 0)], 2)


def test_a_process_that_ends_gives_its_place_to_another() -> None:
    found = in_processes(os._exit, [(1,), (0,)], 1)
    assert [type(value) for value in found] == [WorkerDied, WorkerDied]
