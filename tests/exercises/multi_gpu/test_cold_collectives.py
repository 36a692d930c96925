# SPDX-License-Identifier: Apache-2.0
"""E38: it distinguishes initialisation, waiting and transfer; a measurement is judged on known links."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
import warm_torch
from exercises.clinic_traces import line_of
from exercises.multi_gpu.rank_answers import answers_in, copy_of, failed_in, graded, run_commands, run_on_two
from exercises.multi_gpu.rank_traces import COLD_NS, READS_NS, TRANSFER_NS, made_cold, recordings
from package_root import PACKAGE_ROOT

from profiling_lab.analysis.collectives import collectives
from profiling_lab.analysis.ranks import LocalPool
from profiling_lab.analysis.ranks.reading import files_of
from profiling_lab.cli import main
from profiling_lab.exercises import find, workspace
from profiling_lab.exercises.e38_cold_collectives import grade, repair
from profiling_lab.exercises.e38_cold_collectives.link import SimulatedLink
from profiling_lab.exercises.exercise import CheckStatus, Mistake
from profiling_lab.exercises.ncu_questions import right_answers

EXERCISE = find("cold-collectives")
PROGRAM, BANDWIDTH = EXERCISE.folder / grade.PROGRAM, EXERCISE.folder / grade.REPAIRED
SOLUTION = (EXERCISE.folder / workspace.SOLUTIONS / grade.REPAIRED).read_text()
READ = line_of(EXERCISE.slug, "[json.loads(line)", PROGRAM)
BY_HAND = {
    "first.host_ms": COLD_NS / 1e6,
    "late.step": 1,
    "late.rank": "1",
    "late.kernel_ms": 10.6,
    "late.waits_ms": 10.57,
    "late.file": "cold_collectives.py",
    "late.line": READ,
    "warm.transfer_us": TRANSFER_NS / 1e3,
    "warm.bus_gb_s": (4 << 20) / TRANSFER_NS,
    "fix.cause": "I saw it",
    "fix.change": "I changed it",
}
"""what a learner reads from the tables of the made recordings"""


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_cold(tmp_path_factory.mktemp("starter"))


@pytest.fixture
def copy(tmp_path: Path, starter: Path) -> Path:
    return copy_of(EXERCISE, tmp_path, starter)


def test_what_a_learner_reads_from_the_tables_is_right(copy: Path) -> None:
    checks = graded(EXERCISE, copy, answers_in(copy, **BY_HAND))
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks
    assert checks["recording"].message == "your own"


def test_the_answer_key_is_what_is_read_by_hand(starter: Path) -> None:
    facts = grade.cold_facts(starter)
    for key, right in right_answers(grade.QUESTIONS, facts).items():
        expected = BY_HAND[key]
        assert right == (expected if isinstance(expected, str) else pytest.approx(expected, rel=0.05))
    assert facts.waits_ms == pytest.approx(0.98 * READS_NS / 1e6, rel=0.03)


@pytest.mark.parametrize("mistake", EXERCISE.mistakes, ids=lambda m: m.why)
def test_wrong_answers_are_rejected(mistake: Mistake, copy: Path) -> None:
    checks = graded(EXERCISE, copy, answers_in(copy, **(BY_HAND | dict(mistake.answer))))
    assert failed_in(checks) == {mistake.rejected_by}


def test_answers_copied_from_another_version_are_rejected(tmp_path: Path) -> None:
    copy = copy_of(EXERCISE, tmp_path, made_cold(tmp_path / "moved", shift=2))
    assert failed_in(graded(EXERCISE, copy, answers_in(copy, **BY_HAND))) == {"line"}


def test_a_job_whose_ranks_come_together_is_no_starting_point(tmp_path: Path) -> None:
    copy = copy_of(EXERCISE, tmp_path, made_cold(tmp_path / "warm", solved=True))
    checks = graded(EXERCISE, copy, answers_in(copy, **BY_HAND))
    assert "no rank waits for long" in checks["recording"].message
    assert checks["late.rank"].status is CheckStatus.NOT_CHECKED


def test_one_rank_alone_is_not_enough(copy: Path) -> None:
    (copy / "run1/run.rank1.sqlite").unlink()
    checks = graded(EXERCISE, copy, answers_in(copy, **BY_HAND))
    assert "no all-reduces of two ranks" in checks["recording"].message


# The diagnosis benchmark.


def first_row(folder: Path, after_step: int = 0) -> tuple[float, float, int | None]:
    """Of the collective that exposes most: its spread and its transfer in us, and who came last."""
    result = collectives(files_of([str(folder)]), "collective", pool=LocalPool(1))
    row = next(r for r in result.rows if r.step is not None and r.step >= after_step)
    met = row.arrivals
    return (met.spread_ns or 0) / 1e3, (met.transfer_ns or 0) / 2e3, met.last_rank


def test_collectives_names_the_wait_and_the_rank_first(tmp_path: Path) -> None:
    spread_us, transfer_us, last = first_row(recordings(EXERCISE.slug, tmp_path / "r"), after_step=1)
    assert last == 1 and spread_us > 3_000 and transfer_us < 500
    spread_us, transfer_us, last = first_row(recordings(EXERCISE.slug, tmp_path / "s", True), after_step=8)
    assert spread_us < 200


def test_the_table_s_header_says_what_is_waiting(starter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collectives", str(starter), "--jobs", "1"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "they waited 14.302 ms for the last one (95.8 % of the time in these)" in text


# The measurement.

NAIVE = """
def measure(link):
    begin = link.event()
    link.all_reduce()
    end = link.event()
    link.synchronize()
    return link.us_between(begin, end)
"""
MEAN = """
def measure(link):
    for _ in range(5):
        link.all_reduce()
    link.meet()
    begin = link.event()
    for _ in range(200):
        link.all_reduce()
    end = link.event()
    link.synchronize()
    return link.us_between(begin, end) / 200
"""
COUNTED_TWICE = SOLUTION.replace(
    "marks.append(link.event())", "link.all_reduce()\n        marks.append(link.event())"
)


def judge(tmp_path: Path, text: str, seed: int = 3) -> tuple[CheckStatus, str]:
    (tmp_path / grade.REPAIRED).write_text(text)
    check = repair.checks(BANDWIDTH, tmp_path / grade.REPAIRED, seed)[0]
    assert check.name == "result"
    return check.status, check.message


@pytest.mark.parametrize("seed", range(5))
def test_the_solution_is_right_on_every_link(seed: int, tmp_path: Path) -> None:
    assert judge(tmp_path, SOLUTION, seed)[0] is CheckStatus.PASSED


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param(NAIVE, "making of the communicator", id="one call"),
        pytest.param(MEAN, "some waiting", id="the mean"),
        pytest.param(COUNTED_TWICE, "instead of", id="two calls between marks"),
        pytest.param("def measure(link):\n    return 30.0\n", "no all-reduce", id="hard-coded"),
        pytest.param(
            "def measure(link):\n    link.all_reduce()\n    return 30.0\n", "instead of", id="called for show"
        ),
        pytest.param("def measure(link):\n    return None\n", "must return microseconds", id="nothing"),
        pytest.param(
            "def measure(link):\n    link.all_reduce()\n    return link.transfer_us\n", "AttributeError",
            id="the simulation's own number",
        ),
        pytest.param(
            SOLUTION.replace("    link.synchronize()\n", ""), "RuntimeError: both marks must",
            id="marks that have not been passed",
        ),
        pytest.param(SOLUTION.replace("statistics.median", "1e-3 * statistics.median"),
                     "instead of", id="milliseconds"),
        pytest.param("", "AttributeError", id="no measure"),
    ],
)  # fmt: skip
def test_wrong_measurements_are_rejected(text: str, hint: str, tmp_path: Path) -> None:
    status, message = judge(tmp_path, text)
    assert status is CheckStatus.FAILED and hint in message, message


def test_the_untouched_measurement_is_no_repair(tmp_path: Path) -> None:
    status, message = judge(tmp_path, BANDWIDTH.read_text())
    assert status is CheckStatus.FAILED and "is unchanged" in message


def test_the_simulated_link_is_as_the_job_s() -> None:
    """The first call takes long on the host, the second waits, the others transfer."""
    link = SimulatedLink(30.0, stalls_frac=0.0)
    marks = [link.event()]
    for _ in range(8):
        link.all_reduce()
        marks.append(link.event())
    link.synchronize()
    took = [link.us_between(*pair) for pair in pairwise(marks)]
    assert took[0] > 400_000 and 11_000 <= took[1] < 11_200
    assert took[3:] == pytest.approx([30.0] * 5, abs=1.5)
    assert repair.reference(SimulatedLink(77.0, seed=5)) == pytest.approx(77.0, rel=0.02)
    assert all(20 <= repair.made(random.Random(n)).transfer_us <= 300 for n in range(20))


# What a learner runs.


def test_commands_of_the_readme_work(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_commands(EXERCISE, copy, monkeypatch, capsys) >= 4
    done = warm_torch.run(
        ["bandwidth.py", "--simulated"], copy, {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    )
    assert "an all-reduce of 4 MiB takes 30.0 us" in done.stdout, done.stderr


def test_the_programs_run_on_two_processes_of_the_cpu(tmp_path: Path) -> None:
    for program, shown in ((PROGRAM, "samples"), (BANDWIDTH, "an all-reduce of 4 MiB takes")):
        done = run_on_two(program, "--device", "cpu", folder=tmp_path)
        assert done.returncode == 0 and shown in done.stdout, done.stderr


@pytest.mark.multigpu
def test_on_two_gpus_the_recordings_show_it(tmp_path: Path) -> None:
    copy = workspace.start(EXERCISE, tmp_path / "copy")
    assert main(["exercise", "profile", str(copy)]) == 0
    facts = grade.cold_facts(copy / "run1")
    assert facts.line == ("cold_collectives.py", READ) and facts.last_rank == 1 and facts.late.step == 1
    key = right_answers(grade.QUESTIONS, facts) | {"late.file": "cold_collectives.py", "late.line": READ}
    checks = graded(EXERCISE, copy, answers_in(copy, **key))
    assert failed_in(checks) <= {"explanation"}, checks


@pytest.mark.multigpu
def test_on_two_gpus_the_solution_measures_the_link(tmp_path: Path) -> None:
    (tmp_path / grade.REPAIRED).write_text(SOLUTION)
    checks = repair.checks(BANDWIDTH, tmp_path / grade.REPAIRED)
    assert [check.status for check in checks] == [CheckStatus.PASSED] * 2, checks
