# SPDX-License-Identifier: Apache-2.0
"""The bottleneck clinic: findings are judged from the recording at hand, repairs by what they compute."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from builders import TraceBuilder
from exercises.clinic_traces import MADE, answers_to, line_of, made_trace

from profiling_lab.cli import build_parser, main
from profiling_lab.exercises import catalogue, clinic, find, program_repair, questions, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import ClinicExercise, right_answers, truth
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck, Mistake, Need
from profiling_lab.exercises.program_repair import Goal, judged
from profiling_lab.exercises.suspects import Suspect
from profiling_lab.rules import RULES
from profiling_lab.rules.run import run
from profiling_lab.trace import Trace

CLINIC = [each for each in catalogue() if isinstance(each, ClinicExercise)]
every_exercise = pytest.mark.parametrize("exercise", CLINIC, ids=lambda each: each.slug)


def findings(exercise: ClinicExercise, folder: Path, **changes: object) -> dict[str, GradedCheck]:
    given = Answers({**answers_to(exercise.slug), **{f"finding.{k}": v for k, v in changes.items()}})
    return {check.name: check for check in exercise.findings(folder, given)}


def test_every_exercise_of_the_clinic_has_a_made_recording() -> None:
    assert {each.slug for each in CLINIC} == set(MADE)


@every_exercise
def test_what_a_learner_reads_from_the_tables_is_right(exercise: ClinicExercise, tmp_path: Path) -> None:
    made_trace(exercise.slug, tmp_path / "run.sqlite")
    checks = findings(exercise, tmp_path)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks
    assert checks["recording"].message == "your own"


@pytest.mark.parametrize(
    ("exercise", "mistake"),
    [
        pytest.param(e, m, id=f"{e.slug}: {m.why}")
        for e in CLINIC
        for m in e.mistakes
        if "fix.after" not in m.answer  # about the repair
    ],
)
def test_wrong_answers_are_rejected(exercise: ClinicExercise, mistake: Mistake, tmp_path: Path) -> None:
    made_trace(exercise.slug, tmp_path / "run.sqlite")
    given = Answers({**answers_to(exercise.slug), **mistake.answer})
    failed = {c.name for c in exercise.findings(tmp_path, given) if c.status is CheckStatus.FAILED}
    assert failed == {mistake.rejected_by}


def test_a_name_that_is_a_part_of_another_one_can_be_given_in_full(tmp_path: Path) -> None:
    """ "host code" is a cause, and a part of the cause "host code after a wait"."""
    exercise = find("timeline-basics")
    assert isinstance(exercise, ClinicExercise) and exercise.defect is not None
    suspect = Suspect("train.py", 1, "train", 100.0, 1.0, {"host code": 99.0, "host code after a wait": 1.0})
    for given, status in (("Host code", CheckStatus.PASSED), ("after a wait", CheckStatus.FAILED)):
        check = clinic._behind(exercise.defect, Answers({"finding.behind": given}), suspect)
        assert check.status is status, check


@every_exercise
def test_answers_from_another_recording_are_rejected(exercise: ClinicExercise, tmp_path: Path) -> None:
    """Copied from a recording of another version of the file: the lines have moved."""
    made_trace(exercise.slug, tmp_path / "run.sqlite", shift=3)
    assert findings(exercise, tmp_path)["line"].status is CheckStatus.FAILED
    moved = line_of(exercise.slug, MADE[exercise.slug].line) + 3
    assert findings(exercise, tmp_path, line=moved)["line"].status is CheckStatus.PASSED


@every_exercise
def test_a_recording_without_the_problem_is_refused(exercise: ClinicExercise, tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(20):
        builder.launch("fused_kernel", 1_000_000, stack="train.py:30 Network.step")
    builder.write(tmp_path / "run.sqlite")
    checks = findings(exercise, tmp_path)
    assert checks["recording"].status is CheckStatus.FAILED
    assert "does not show the problem" in checks["recording"].message
    assert checks["line"].status is CheckStatus.NOT_CHECKED


@every_exercise
def test_an_unreadable_recording_is_said(exercise: ClinicExercise, tmp_path: Path) -> None:
    (tmp_path / "run.sqlite").write_text("no database")
    checks = findings(exercise, tmp_path)
    assert (
        checks["recording"].status is CheckStatus.FAILED and "exercise profile" in checks["recording"].message
    )


def test_a_share_as_a_fraction_gets_its_own_hint(tmp_path: Path) -> None:
    exercise = find("memory-bandwidth")
    assert isinstance(exercise, ClinicExercise)
    made_trace(exercise.slug, tmp_path / "run.sqlite")
    check = findings(exercise, tmp_path, size=0.6)["size"]
    assert check.status is CheckStatus.FAILED and "per cent" in check.message


@every_exercise
def test_the_answer_key_of_the_recording_script_reads_the_same(
    exercise: ClinicExercise, tmp_path: Path
) -> None:
    assert exercise.defect is not None
    found = truth(exercise.defect, made_trace(exercise.slug, tmp_path / "run.sqlite"))
    assert not isinstance(found, str)
    key, by_hand = right_answers(found[0]), answers_to(exercise.slug)
    for name in ("finding.file", "finding.line", "finding.size"):
        assert key[name] == by_hand[name]
    timeline = questions.right_answers(exercise.questions, tmp_path / "run.sqlite")
    assert timeline == pytest.approx({name: by_hand[name] for name in timeline}, rel=1e-3)


@every_exercise
def test_check_names_the_planted_line(exercise: ClinicExercise, tmp_path: Path) -> None:
    with Trace.open(made_trace(exercise.slug, tmp_path / "run.sqlite")) as trace:
        found = run(trace, RULES).findings
    line = line_of(exercise.slug, MADE[exercise.slug].line)
    named = {
        f.rule
        for first in found
        for f in (first, *first.effects)  # what a finding explains is told with it
        if f.place and f.place.line == line
    }
    assert named & set(exercise.rules), [(f.rule, f.place) for f in found]


@every_exercise
def test_recorded_starter_shows_the_problem_and_recorded_solution_does_not(exercise: ClinicExercise) -> None:
    recorded = exercise.folder / workspace.RECORDED
    if not (recorded / "starter_h200.sqlite").is_file():
        pytest.skip("not recorded yet: tools/record_exercises.py does it on a GPU")
    assert exercise.defect is not None
    found = truth(exercise.defect, recorded / "starter_h200.sqlite")
    assert not isinstance(found, str), found
    lines = (exercise.folder / "train.py").read_text().splitlines()
    assert MADE[exercise.slug].line in "\n".join(lines[each.line - 1] for each in found)
    with Trace.open(recorded / "starter_h200.sqlite") as trace:
        named = {
            f.rule
            for first in run(trace, RULES).findings
            for f in (first, *first.effects)  # what a finding explains is told with it
            if f.place and f.place.line in {each.line for each in found}
        }
    assert named & set(exercise.rules)
    assert isinstance(truth(exercise.defect, recorded / "solution_h200.sqlite"), str)


# Repairs.

CACHED = """

_train, _remembered = train, {}


def train(job, steps):
    if steps not in _remembered:
        _remembered[steps] = _train(job, steps)
    return _remembered[steps]
"""
HARD_CODED = """

def train(job, steps):
    return [2.3026] * steps
"""
SLEEPS = "\nimport time as _time\n_time.sleep(0)\n"


def edited(exercise: ClinicExercise, folder: Path, old: str = "", new: str = "", more: str = "") -> Path:
    """A learner's train.py: the solution, with a change."""
    text = (exercise.folder / workspace.SOLUTIONS / "train.py").read_text()
    assert old in text
    path = folder / "train.py"
    path.write_text(text.replace(old, new, 1).replace('if __name__ == "__main__"', "if False") + more)
    return path


def judge(exercise: ClinicExercise, path: Path) -> dict[str, GradedCheck]:
    assert exercise.goal is not None
    checks = program_repair.checks(exercise.folder / "train.py", path, exercise.goal)
    return {check.name: check for check in checks}


@every_exercise
def test_solution_computes_the_same(exercise: ClinicExercise, tmp_path: Path) -> None:
    checks = judge(exercise, edited(exercise, tmp_path))
    assert checks["result"].status is CheckStatus.PASSED, checks["result"].message


@every_exercise
def test_untouched_program_is_no_repair(exercise: ClinicExercise) -> None:
    checks = judge(exercise, exercise.folder / "train.py")
    assert checks["result"].status is CheckStatus.FAILED and "is unchanged" in checks["result"].message


@pytest.mark.parametrize(
    ("old", "new", "more", "hint"),
    [
        pytest.param("        loss.backward()\n", "", "", "missing", id="deleted computation"),
        pytest.param("", "", HARD_CODED, "", id="hard-coded output"),
        pytest.param("", "", CACHED, "", id="result cached between runs"),
        pytest.param("lr=0.01", "lr=0.0", "", "differs by", id="parameters that stay as they are"),
        pytest.param("def build(", "def construct(", "", "AttributeError", id="no build"),
        pytest.param(
            "(job, steps):", "(job, steps):\n    steps = 1", "", "the return value of train", id="fewer steps"
        ),
    ],
)
@every_exercise
def test_programs_that_compute_something_else_are_rejected(
    exercise: ClinicExercise, old: str, new: str, more: str, hint: str, tmp_path: Path
) -> None:
    if exercise.slug == "slow-convolutions" and "backward" in old:
        old = "    " + old  # it stands one block deeper there
    checks = judge(exercise, edited(exercise, tmp_path, old, new, more))
    assert checks["result"].status is CheckStatus.FAILED
    assert hint in checks["result"].message


def test_the_baseline_is_ours_so_a_sleep_that_the_learner_put_in_wins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exercise = find("memory-layout")
    assert isinstance(exercise, ClinicExercise) and exercise.goal is not None
    path = tmp_path / "train.py"
    path.write_text((exercise.folder / "train.py").read_text() + SLEEPS)
    raced: list[str | None] = []

    def race(before: object, after: object, goal: Goal) -> list[GradedCheck]:
        raced.extend((before.__file__, after.__file__))  # type: ignore[attr-defined]
        return [judged([1.0, 1.0, 1.0], [[0.01, 0.01]], goal)]

    monkeypatch.setattr(Need, "missing", lambda self: "")
    monkeypatch.setattr(program_repair, "race", race)
    checks = judge(exercise, path)
    assert raced == [str(exercise.folder / "train.py"), str(path)]
    assert checks["speed"].status is CheckStatus.FAILED and "the goal is" in checks["speed"].message


def test_full_size_results_are_compared_too(tmp_path: Path) -> None:
    """What is remembered by round would pass a judge that looks at the clock alone."""
    exercise = find("memory-layout")
    assert isinstance(exercise, ClinicExercise) and exercise.goal is not None
    before = program_repair.load(exercise.folder / "train.py", "before")
    right = program_repair.load(edited(exercise, tmp_path), "right")
    assert [c.name for c in program_repair.race(before, right, exercise.goal, device="cpu")] == ["speed"]
    wrong = program_repair.load(edited(exercise, tmp_path, more=HARD_CODED), "wrong")
    found = program_repair.race(before, wrong, exercise.goal, device="cpu")
    assert [(c.name, c.status) for c in found] == [("result", CheckStatus.FAILED)]


def test_the_goal_decides() -> None:
    goal = Goal(faster=2.0, steps=1)
    assert judged([2.5, 1.9, 2.1], [[0.021, 0.01]], goal).status is CheckStatus.PASSED
    assert judged([2.5, 1.9, 1.8], [[0.019, 0.01]], goal).status is CheckStatus.FAILED


# What a learner reads.


@every_exercise
def test_commands_of_the_readme_work(
    exercise: ClinicExercise,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    made_trace(exercise.slug, tmp_path / "run1.sqlite")
    text = (exercise.folder / "README.md").read_text()
    commands = re.findall(r"^    profiling-lab (.+?)(?:\s+#.*)?$", text, re.M)
    assert len(commands) >= 6
    for command in commands:
        arguments = command.split()
        build_parser().parse_args(arguments)
        if "run1.sqlite" in arguments:
            assert main(arguments) in (0, 1), f"{command}: {capsys.readouterr().err}"


@every_exercise
def test_three_hints(exercise: ClinicExercise) -> None:
    assert len(workspace.hints(exercise)) == 3


@every_exercise
def test_goal_of_the_readme_is_the_goal_of_the_judge(exercise: ClinicExercise) -> None:
    assert exercise.goal is not None
    text = (exercise.folder / "README.md").read_text()
    assert f"at least {exercise.goal.faster:g} times as fast" in text


def test_the_repaired_loop_no_longer_counts_as_the_problem(tmp_path: Path) -> None:
    """After the repair the same function still launches small kernels, as many as everything else."""
    exercise = find("many-small-kernels")
    assert isinstance(exercise, ClinicExercise)
    builder = TraceBuilder()
    for _ in range(20):
        builder.launch("small", 2_000, stack="train.py:30 GroupedScale.forward")
        builder.launch("small", 2_000, stack="train.py:80 train")
    builder.write(tmp_path / "run.sqlite")
    assert findings(exercise, tmp_path)["recording"].status is CheckStatus.FAILED


def test_functions_without_their_class_are_known_too(tmp_path: Path) -> None:
    exercise = find("slow-convolutions")
    assert isinstance(exercise, ClinicExercise)
    for function, status in (
        ("forward", CheckStatus.PASSED),
        ("Block.forward", CheckStatus.PASSED),
        ("Net.forward", CheckStatus.FAILED),
    ):
        (tmp_path / "run.sqlite").unlink(missing_ok=True)
        builder = TraceBuilder()
        builder.launch("im2col_kernel", 1_000_000, stack=f"train.py:30 {function}")
        builder.write(tmp_path / "run.sqlite")
        assert findings(exercise, tmp_path)["recording"].status is status
