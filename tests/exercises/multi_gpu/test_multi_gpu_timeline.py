# SPDX-License-Identifier: Apache-2.0
"""E04: answers are computed from the recordings of two ranks; made ones where those of GPUs are not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import warm_torch
from exercises.clinic_traces import line_of
from exercises.multi_gpu.rank_answers import answers_in, copy_of, failed_in, graded, run_commands, run_on_two
from exercises.multi_gpu.rank_traces import made_ddp_training, recordings
from package_root import PACKAGE_ROOT

from profiling_lab.cli import main
from profiling_lab.exercises import find, workspace
from profiling_lab.exercises.e04_multi_gpu_timeline import analyze_nccl, grade
from profiling_lab.exercises.exercise import CheckStatus, Mistake
from profiling_lab.exercises.job_facts import job_facts
from profiling_lab.exercises.ncu_questions import right_answers
from profiling_lab.rules import RULES
from profiling_lab.rules.run import run
from profiling_lab.trace import Trace

EXERCISE = find("multi-gpu-timeline")
PROGRAM = EXERCISE.folder / grade.PROGRAM
SOLUTION = (EXERCISE.folder / workspace.SOLUTIONS / grade.PROGRAM).read_text()
WRAPPED = line_of(EXERCISE.slug, "DistributedDataParallel(model", PROGRAM)
BY_HAND = {
    "timeline.messages": 1.0,
    "timeline.message_mib": 576.0,
    "timeline.exposed_ms": 2.04,
    "timeline.bus_gb_s": 318.0,
    "timeline.runs": "after backward",
    "timeline.at_best_ms": 6.23,
    "finding.file": "ddp_training.py",
    "finding.line": WRAPPED,
}
"""what a learner reads from the tables of the made recordings"""


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_ddp_training(tmp_path_factory.mktemp("starter"))


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_ddp_training(tmp_path_factory.mktemp("solved"), solved=True)


@pytest.fixture
def copy(tmp_path: Path, starter: Path) -> Path:
    return copy_of(EXERCISE, tmp_path, starter)


def test_what_a_learner_reads_from_the_tables_is_right(copy: Path) -> None:
    given = answers_in(copy, **BY_HAND, **{"fix.cause": "I saw it", "fix.change": "I changed it"})
    checks = graded(EXERCISE, copy, given)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks
    assert checks["recording"].message == "your own"


def test_the_answer_key_is_what_is_read_by_hand(starter: Path) -> None:
    key = right_answers(grade.QUESTIONS, job_facts(starter))
    assert key.pop("timeline.runs") == BY_HAND["timeline.runs"]
    assert key == pytest.approx({name: BY_HAND[name] for name in key}, rel=0.02)


@pytest.mark.parametrize(
    "mistake", [m for m in EXERCISE.mistakes if "fix.after" not in m.answer], ids=lambda m: m.why
)
def test_wrong_answers_are_rejected(mistake: Mistake, copy: Path) -> None:
    right = {**BY_HAND, "fix.cause": "I saw it", "fix.change": "I changed it"}
    checks = graded(EXERCISE, copy, answers_in(copy, **(right | dict(mistake.answer))))
    assert failed_in(checks) == {mistake.rejected_by}


def test_answers_copied_from_another_version_are_rejected(tmp_path: Path) -> None:
    """The lines of the program have moved."""
    copy = copy_of(EXERCISE, tmp_path, made_ddp_training(tmp_path / "moved", shift=3))
    checks = graded(EXERCISE, copy, answers_in(copy, **BY_HAND))
    assert checks["line"].status is CheckStatus.FAILED and "close" in checks["line"].message
    checks = graded(EXERCISE, copy, answers_in(copy, **(BY_HAND | {"finding.line": WRAPPED + 3})))
    assert checks["line"].status is CheckStatus.PASSED


def test_recordings_of_the_repaired_program_are_no_starting_point(tmp_path: Path, solved: Path) -> None:
    copy = copy_of(EXERCISE, tmp_path, solved)
    checks = graded(EXERCISE, copy, answers_in(copy, **BY_HAND))
    assert "do not show the problem" in checks["recording"].message
    assert checks["timeline.messages"].status is CheckStatus.NOT_CHECKED


@pytest.mark.parametrize(
    ("what", "sentence"),
    [("nothing", "no such file"), ("one rank", "at least two ranks"), ("no database", "exercise profile")],
)
def test_unusable_recordings_are_said(what: str, sentence: str, copy: Path) -> None:
    if what == "nothing":
        given = answers_in(copy, trace="run7")
    else:
        (copy / "run1/run.rank1.sqlite").unlink()
        given = answers_in(copy)
    if what == "no database":
        (copy / "run1/run.rank0.sqlite").write_text("no database")
    checks = graded(EXERCISE, copy, given)
    assert checks["recording"].status is CheckStatus.FAILED
    assert sentence in checks["recording"].message, checks["recording"].message


def test_the_new_recordings_must_hide_the_same_bytes_in_several_messages(
    copy: Path, starter: Path, solved: Path, tmp_path: Path
) -> None:
    def judged(folder: Path) -> tuple[CheckStatus, str]:
        check = grade.overlap(copy, answers_in(copy, **{"fix.after": str(folder)}))
        return check.status, check.message

    assert judged(solved) == (
        CheckStatus.PASSED,
        "12 all-reduces per step, 12 % of the communication exposed",
    )
    status, message = judged(starter)
    assert status is CheckStatus.FAILED and "unchanged program" in message
    status, message = judged(made_ddp_training(tmp_path / "again", shift=1))
    assert status is CheckStatus.FAILED and "one message cannot begin before" in message
    status, message = judged(tmp_path / "none")
    assert status is CheckStatus.FAILED and "no such file" in message
    check = grade.overlap(copy, answers_in(copy))
    assert check.status is CheckStatus.NOT_CHECKED and "[fix] after" in check.message


def test_a_repair_that_reduces_less_is_told(
    copy: Path, solved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients in half precision, or of some layers only."""
    real = grade.bytes_per_step
    halved = {solved: 0.5}
    monkeypatch.setattr(grade, "bytes_per_step", lambda f: real(f) * halved.get(f.path, 1.0))
    check = grade.overlap(copy, answers_in(copy, **{"fix.after": str(solved)}))
    assert check.status is CheckStatus.FAILED and "288 MiB per step are reduced, not 576" in check.message


# The diagnosis benchmark.


def test_check_names_the_cause_first_on_each_rank_and_not_on_the_solution_s(tmp_path: Path) -> None:
    costs = []
    for rank in range(2):
        for is_solved in (False, True):
            folder = recordings(EXERCISE.slug, tmp_path / f"{rank}{is_solved}", is_solved)
            (path,) = folder.glob(f"*rank{rank}.sqlite*")
            with Trace.open(path) as trace:
                findings = run(trace, RULES).findings
            costs.append([f.cost_ns for f in findings if f.rule in EXERCISE.rules])
            if not is_solved:
                assert findings[0].rule in EXERCISE.rules
    assert all(costs[::2]) and not any(costs[1::2])


def test_the_tables_show_it_too(tmp_path: Path) -> None:
    before, after = (job_facts(recordings(EXERCISE.slug, tmp_path / str(s), s)) for s in (False, True))
    assert before.kind("AllReduce") and before.per_step("AllReduce") == pytest.approx(1, abs=0.01)
    assert grade.exposed_frac(before) > 0.9 > grade.HIDES_FRAC > grade.exposed_frac(after)
    for facts in (before, after):
        assert facts.job.verdict.blame is None or facts.job.verdict.cost_ns < 0.05 * facts.step_ns
    assert before.line_of("Broadcast") == ("ddp_training.py", WRAPPED)


# Repairs.


def repaired(tmp_path: Path, old: str = "", new: str = "") -> dict[str, tuple[CheckStatus, str]]:
    assert old in SOLUTION
    (tmp_path / grade.PROGRAM).write_text(SOLUTION.replace(old, new, 1))
    checks = EXERCISE.repair(tmp_path, answers_in(workspace_of(tmp_path)))
    return {check.name: (check.status, check.message) for check in checks}


def workspace_of(tmp_path: Path) -> Path:
    (tmp_path / "answer.toml").write_bytes((EXERCISE.folder / "answer.toml").read_bytes())
    return tmp_path


@pytest.mark.usefixtures("warm_ranks")
@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param("", "", None, id="the solution"),
        pytest.param("BUCKET_MB = 25", "BUCKET_MB = 1", None, id="other buckets"),
        pytest.param(
            "return DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)", "return model",
            "differs by", id="every rank for itself",
        ),
        pytest.param("seed + 1 + dist.get_rank()", "seed + 1", "differs by", id="all ranks on the same data"),
        pytest.param("        loss.backward()\n", "", "is missing", id="deleted computation"),
        pytest.param(
            "return torch.stack(losses).tolist()", "return [2.0] * steps", "the return value of train",
            id="hard-coded output",
        ),
        pytest.param("lr=0.01", "lr=0.02", "differs by", id="other steps"),
        pytest.param("range(steps)", "range(1)", "the return value of train has", id="fewer steps"),
        pytest.param("def build(", "def construct(", "AttributeError", id="no build"),
    ],
)  # fmt: skip
def test_repairs_are_judged_by_what_every_rank_computes(
    old: str, new: str, hint: str | None, tmp_path: Path
) -> None:
    checks = repaired(tmp_path, old, new)
    status, message = checks["result"]
    assert status is (CheckStatus.PASSED if hint is None else CheckStatus.FAILED), message
    assert hint is None or hint in message


def test_the_untouched_program_is_no_repair(tmp_path: Path) -> None:
    (tmp_path / grade.PROGRAM).write_bytes(PROGRAM.read_bytes())
    check = EXERCISE.repair(tmp_path, answers_in(workspace_of(tmp_path)))[0]
    assert check.status is CheckStatus.FAILED and "is unchanged" in check.message


# What a learner runs.


def test_commands_of_the_readme_work(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_commands(EXERCISE, copy, monkeypatch, capsys) >= 3


def test_the_intervals_are_those_of_the_tables(starter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        analyze_nccl.report(str(starter / f"run.rank{rank}.sqlite"))
    first, second = capsys.readouterr().out.splitlines()
    result = job_facts(starter).collectives
    exposed = [float(line.rpartition(" exposed ")[2].split()[0]) for line in (first, second)]
    assert sum(exposed) == pytest.approx(result.exposed_ns / 1e6, abs=0.002)
    assert "8 kernels" in first and "hidden 0.000 ms" in first


def test_shared_time_of_two_unions() -> None:
    one, other = analyze_nccl.union([(0, 5), (3, 8), (20, 30)]), analyze_nccl.union([(4, 6), (7, 25)])
    assert one == [[0, 8], [20, 30]]
    assert analyze_nccl.shared(one, other) == analyze_nccl.shared(other, one) == 2 + 1 + 5
    assert analyze_nccl.shared(one, []) == 0


def test_analyze_nccl_says_what_is_wrong(tmp_path: Path) -> None:
    program = str(EXERCISE.folder / "analyze_nccl.py")
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    done = warm_torch.run([program, str(tmp_path / "none")], tmp_path, environment)
    assert done.returncode == 1 and "there is no such file or folder" in done.stderr
    done = warm_torch.run([program], tmp_path, environment)
    assert done.returncode == 1 and "usage: python analyze_nccl.py FOLDER" in done.stderr


def test_the_program_runs_on_two_processes_of_the_cpu(tmp_path: Path) -> None:
    done = run_on_two(PROGRAM, "--device", "cpu", "--steps", "1", folder=tmp_path)
    assert done.returncode == 0 and "ms per step" in done.stdout, done.stderr
    alone = warm_torch.run([str(PROGRAM)], tmp_path, dict(os.environ))
    assert alone.returncode == 2 and "start it as torchrun" in alone.stderr


@pytest.mark.multigpu
def test_on_two_gpus_the_recordings_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = workspace.start(EXERCISE, tmp_path / "copy")
    assert main(["exercise", "profile", str(copy)]) == 0
    facts = job_facts(copy / "run1")
    assert not grade.unusable(facts)
    assert facts.line_of("Broadcast") == ("ddp_training.py", WRAPPED)
    assert answers_in(copy).text("trace") == "run1"
