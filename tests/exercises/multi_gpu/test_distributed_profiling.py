# SPDX-License-Identifier: Apache-2.0
"""E11: rank, line, cause and cost are read from two jobs; made ones where those of GPUs are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from exercises.clinic_traces import line_of
from exercises.multi_gpu.rank_answers import answers_in, copy_of, failed_in, graded, run_commands, run_on_two
from exercises.multi_gpu.rank_traces import made_distributed, recordings

from profiling_lab.cli import main
from profiling_lab.exercises import find, workspace
from profiling_lab.exercises.e11_distributed_profiling import grade
from profiling_lab.exercises.exercise import CheckStatus, Mistake
from profiling_lab.exercises.job_facts import job_facts
from profiling_lab.exercises.ncu_questions import right_answers
from profiling_lab.rules import RULES
from profiling_lab.rules.run import run
from profiling_lab.trace import Trace

EXERCISE = find("distributed-profiling")
SORT = line_of(EXERCISE.slug, ".sort().values", EXERCISE.folder / "train_ddp.py")
NUMBERS = line_of(EXERCISE.slug, "return [NUMBERS.get(", EXERCISE.folder / "train_fsdp.py")
BY_HAND = {
    "ddp.rank": "0",
    "ddp.cause": "unequal work",
    "ddp.file": "train_ddp.py",
    "ddp.line": SORT,
    "ddp.waits_ms": 8.93,
    "ddp.saved_ms": 7.47,
    "fsdp2.rank": "1",
    "fsdp2.cause": "slow host",
    "fsdp2.file": "train_fsdp.py",
    "fsdp2.line": NUMBERS,
    "fsdp2.waits_ms": 29.73,
    "fsdp2.saved_ms": 29.72,
    "torch.longest": "1",
    "torch.nccl_ms": 4.59,
    "fix.cause": "I saw it",
    "fix.change": "I changed it",
}
"""what a learner reads from the tables of the made recordings"""


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_distributed(tmp_path_factory.mktemp("starter"))


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_distributed(tmp_path_factory.mktemp("solved"), solved=True)


@pytest.fixture
def copy(tmp_path: Path, starter: Path) -> Path:
    return copy_of(EXERCISE, tmp_path, starter)


def test_what_a_learner_reads_from_the_tables_is_right(copy: Path) -> None:
    checks = graded(EXERCISE, copy, answers_in(copy, **BY_HAND))
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks
    assert {checks[f"{name} recording"].message for name in ("ddp", "fsdp2", "torch")} == {"your own"}


def test_the_answer_key_is_what_is_read_by_hand(starter: Path) -> None:
    for name, questions in (("ddp", grade.questions("ddp")), ("torch", grade.TORCH_QUESTIONS)):
        for key, right in right_answers(questions, job_facts(starter / name).job).items():
            expected = BY_HAND[key]
            assert right == (expected if isinstance(expected, str) else pytest.approx(expected, rel=0.02))


@pytest.mark.parametrize("mistake", EXERCISE.mistakes, ids=lambda m: m.why)
def test_wrong_answers_are_rejected(mistake: Mistake, copy: Path) -> None:
    checks = graded(EXERCISE, copy, answers_in(copy, **(BY_HAND | dict(mistake.answer))))
    assert failed_in(checks) == {mistake.rejected_by}


def test_answers_copied_from_another_version_are_rejected(tmp_path: Path) -> None:
    """The lines of the programs have moved."""
    copy = copy_of(EXERCISE, tmp_path, made_distributed(tmp_path / "moved", shift=4))
    checks = graded(EXERCISE, copy, answers_in(copy, **BY_HAND))
    assert failed_in(checks) == {"ddp line", "fsdp2 line"}


def test_recordings_of_the_repaired_programs_are_no_starting_point(tmp_path: Path, solved: Path) -> None:
    copy = copy_of(EXERCISE, tmp_path, solved)
    checks = graded(EXERCISE, copy, answers_in(copy, **BY_HAND))
    for name in ("ddp", "fsdp2"):
        assert "does not show the problem" in checks[f"{name} recording"].message
        assert checks[f"{name}.rank"].status is CheckStatus.NOT_CHECKED


def test_one_job_without_recordings_leaves_the_other_graded(copy: Path) -> None:
    for path in (copy / "run1/fsdp2").iterdir():
        path.unlink()
    checks = graded(EXERCISE, copy, answers_in(copy, **BY_HAND))
    assert failed_in(checks) == {"fsdp2 recording"}
    assert checks["ddp line"].status is CheckStatus.PASSED


def test_the_new_recordings_must_be_balanced(copy: Path, starter: Path, solved: Path, tmp_path: Path) -> None:
    for planted in grade.JOBS:

        def judged(folder: Path, planted: grade.Planted = planted) -> tuple[CheckStatus, str]:
            check = grade.after(planted, copy, answers_in(copy, **{"fix.after": str(folder)}))
            return check.status, check.message

        status, message = judged(solved)
        assert status is CheckStatus.PASSED and "no rank holds it up" in message
        status, message = judged(starter)
        assert status is CheckStatus.FAILED and "unchanged program" in message
        again = made_distributed(tmp_path / f"{planted.name} again", shift=1)
        status, message = judged(again)
        assert status is CheckStatus.FAILED and f"because of {planted.cause} on rank" in message
        status, message = judged(tmp_path / "none")
        assert status is CheckStatus.FAILED and "no such file" in message
        check = grade.after(planted, copy, answers_in(copy))
        assert check.status is CheckStatus.NOT_CHECKED


# The diagnosis benchmark.


def test_ranks_names_rank_line_and_cause_and_not_on_the_solution_s(tmp_path: Path) -> None:
    before, after = (recordings(EXERCISE.slug, tmp_path / str(s), s) for s in (False, True))
    expected = {"ddp": (0, "unequal work", f"train_ddp.py:{SORT}"),
                "fsdp2": (1, "slow host", f"train_fsdp.py:{NUMBERS}")}  # fmt: skip
    for name, (rank, cause, line) in expected.items():
        blame = job_facts(before / name).job.verdict.blame
        assert blame is not None and (blame.rank, blame.cause) == (rank, cause)
        assert blame.line.endswith(line)
        left = grade.straggler(job_facts(after / name).job)
        assert left is None or not left.line.endswith(line)


def test_torch_s_traces_name_the_rank(tmp_path: Path) -> None:
    job = job_facts(recordings(EXERCISE.slug, tmp_path / "r") / "torch").job
    assert job.verdict.rank == 0 and grade._talks_most(job) == "1"


def test_check_names_the_line_of_the_slow_host(tmp_path: Path) -> None:
    """On its own rank the GPU is idle because of it."""
    folder = recordings(EXERCISE.slug, tmp_path / "r") / "fsdp2"
    (path,) = folder.glob("*rank1.sqlite*")
    with Trace.open(path) as trace:
        finding = run(trace, RULES).findings[0]
    assert finding.rule == "gap_cause" and finding.place is not None and finding.place.line == NUMBERS


# Repairs.


def repaired(tmp_path: Path, program: str, old: str, new: str) -> tuple[CheckStatus, str]:
    planted = next(each for each in grade.JOBS if each.program == program)
    text = (EXERCISE.folder / workspace.SOLUTIONS / program).read_text()
    assert old in text
    (tmp_path / program).write_text(text.replace(old, new, 1))
    starter = EXERCISE.folder / program
    check = grade.job_repair.checks(starter, tmp_path / program, planted.goal, planted.name)[0]
    assert check.name == f"{planted.name} result"
    return check.status, check.message


@pytest.mark.usefixtures("warm_ranks")
@pytest.mark.parametrize(
    ("program", "old", "new", "hint"),
    [
        pytest.param("train_ddp.py", "", "", None, id="the solution of DDP"),
        pytest.param("train_fsdp.py", "", "", None, id="the solution of FSDP2"),
        pytest.param(
            "train_fsdp.py", "numbered(text[:length]) for", "numbered(text[: 2 * length])[:length] for", None,
            id="a crop that leaves more",
        ),
        pytest.param(
            "train_ddp.py", "    dist.all_reduce(found)\n", "", "the return value of train differs",
            id="sizes of a half of the layers",
        ),
        pytest.param(
            "train_ddp.py", "log.append(found)", "log.append(found) if not log else None",
            "the return value of train has", id="a log of fewer steps",
        ),
        pytest.param(
            "train_ddp.py", "if dist.get_rank() == 0:", "if True:", "on rank 1 the return value of train has",
            id="a log on every rank",
        ),
        pytest.param(
            "train_ddp.py", "int(part * (len(ordered) - 1))", "-1", "differs by", id="the largest weight",
        ),
        pytest.param(
            "train_fsdp.py", "text[:length]", "text[length:]", "differs by", id="other letters",
        ),
        pytest.param(
            "train_fsdp.py", "if dist.get_rank() % 2 else POSTS", "if False else POSTS", "differs by",
            id="other documents",
        ),
        pytest.param(
            "train_fsdp.py", "        loss.backward()\n", "", "missing or new", id="deleted computation",
        ),
        pytest.param(
            "train_fsdp.py", "fully_shard(model, mp_policy=policy)", "model", "differs by",
            id="some weights are each rank's own",
        ),
    ],
)  # fmt: skip
def test_repairs_are_judged_by_what_every_rank_computes(
    program: str, old: str, new: str, hint: str | None, tmp_path: Path
) -> None:
    status, message = repaired(tmp_path, program, old, new)
    assert status is (CheckStatus.PASSED if hint is None else CheckStatus.FAILED), message
    assert hint is None or hint in message


# What a learner runs.


def test_commands_of_the_readme_work(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, program in (("ddp", "train_ddp"), ("fsdp2", "train_fsdp")):
        for path in (copy / "run1" / name).iterdir():
            path.rename(path.with_name(path.name.replace("run.", f"{program}.")))
    assert run_commands(EXERCISE, copy, monkeypatch, capsys) >= 7


def test_the_programs_run_on_two_processes_of_the_cpu(tmp_path: Path) -> None:
    for program, *more in (("train_ddp.py", "--trace", "traces"), ("train_fsdp.py", "--steps", "1")):
        done = run_on_two(EXERCISE.folder / program, "--device", "cpu", *more, folder=tmp_path)
        assert done.returncode == 0 and done.stdout.count("ms per step") == 2, done.stderr
    assert {path.name for path in (tmp_path / "traces").iterdir()} == {
        "trace.rank0.json.gz",
        "trace.rank1.json.gz",
    }


@pytest.mark.multigpu
def test_on_two_gpus_the_recordings_show_it(tmp_path: Path) -> None:
    copy = workspace.start(EXERCISE, tmp_path / "copy")
    assert main(["exercise", "profile", str(copy)]) == 0
    key: dict[str, object] = {"trace": "run1"}
    for planted in grade.JOBS:
        job = job_facts(copy / "run1" / planted.name).job
        assert grade.straggler(job) is not None, job.verdict
        key |= right_answers(grade.questions(planted.name), job)
    key |= right_answers(grade.TORCH_QUESTIONS, job_facts(copy / "run1/torch").job)
    expected = {name: BY_HAND[name] for name in BY_HAND if not name.endswith("_ms")}
    checks = graded(EXERCISE, copy, answers_in(copy, **(expected | key)))
    assert not failed_in(checks), checks
