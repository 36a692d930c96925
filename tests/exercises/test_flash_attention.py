# SPDX-License-Identifier: Apache-2.0
"""E32: line and positions on the roofline are judged from the files at hand, the repair by its result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from exercises.attention_files import RUNGS, attention_trace, made_report

from profiling_lab.analysis.ncu.report import read
from profiling_lab.cli import build_parser, main
from profiling_lab.exercises import clinic, find, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.answers import read as read_answers
from profiling_lab.exercises.e32_flash_attention import grade
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck, Mistake
from profiling_lab.rules import RULES
from profiling_lab.rules.run import run
from profiling_lab.trace import Trace

EXERCISE = find("flash-attention")
SOLVED = (EXERCISE.folder / workspace.SOLUTIONS / grade.PROGRAM).read_text()


def line_of(text: str) -> int:
    lines = (EXERCISE.folder / grade.PROGRAM).read_text().splitlines()
    (found,) = (number for number, line in enumerate(lines, 1) if text in line)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    attention_trace(tmp_path / "run.sqlite", line_of)
    made_report(EXERCISE.slug, tmp_path / "report.csv", RUNGS)
    return tmp_path


def answers(folder: Path) -> Answers:
    """The right answers to the files in `folder`."""
    found = clinic.truth(grade.DEFECT, folder / "run.sqlite")
    assert not isinstance(found, str), found
    right = clinic.right_answers(found[0]) | grade.right_answers(read(folder / "report.csv"))
    about = {"exercise": EXERCISE.slug, "trace": "run.sqlite", "report": "report.csv"}
    return Answers({**about, **right, "fix.cause": "I saw it", "fix.change": "I changed it"})


def checks(folder: Path, given: Answers) -> dict[str, GradedCheck]:
    return {check.name: check for check in EXERCISE.findings(folder, given)}


def failed(found: dict[str, GradedCheck]) -> set[str]:
    return {name for name, check in found.items() if check.status is CheckStatus.FAILED}


def test_what_a_learner_reads_from_both_files_is_right(folder: Path) -> None:
    found = checks(folder, answers(folder))
    assert {check.status for check in found.values()} == {CheckStatus.PASSED}, found


def test_the_positions_are_those_of_all_kernels_of_a_rung(folder: Path) -> None:
    found = grade.rungs(read(folder / "report.csv"))
    flops = 4 * 32 * 1024**2 * 64
    assert found["naive"].rate == pytest.approx(flops / 13.15e-3 / 1e12)
    assert found["tiled"].intensity == pytest.approx(flops / 570e6)
    assert found["ladder"].busiest == ("L1", "SM") and found["flash"].busiest == ("SM",)


@pytest.mark.parametrize("mistake", [pytest.param(m, id=m.why) for m in EXERCISE.mistakes if not m.files])
def test_wrong_answers_are_rejected(mistake: Mistake, folder: Path) -> None:
    assert failed(checks(folder, answers(folder).replaced(mistake.answer))) == {mistake.rejected_by}


def test_answers_from_other_files_are_rejected(folder: Path) -> None:
    given = answers(folder)
    attention_trace(folder / "run.sqlite", line_of, shift=3)
    slower = tuple(type(made)(made.kernel, made.grid, 1.3 * made.us, made.metrics) for made in RUNGS)
    made_report(EXERCISE.slug, folder / "report.csv", slower)
    assert {"line", *(f"{name} rate" for name in grade.KERNELS)} <= failed(checks(folder, given))


def test_files_without_the_problem_are_refused(folder: Path) -> None:
    given = answers(folder)
    attention_trace(folder / "run.sqlite", line_of, solved=True)
    found = checks(folder, given)
    assert "does not show the problem" in found["recording"].message
    made_report(EXERCISE.slug, folder / "report.csv", RUNGS[:-1])
    found = checks(folder, given)
    assert "no launch of flash" in found["report"].message
    assert found["naive"].status is CheckStatus.NOT_CHECKED


def test_check_names_the_line_of_the_starter_and_not_of_the_solution(folder: Path) -> None:
    def named() -> set[str]:
        with Trace.open(folder / "run.sqlite") as trace:
            return {each.rule for each in run(trace, RULES).findings}

    assert set(EXERCISE.rules) <= named()
    attention_trace(folder / "run.sqlite", line_of, solved=True)
    assert not set(EXERCISE.rules) & named()


CALL = "return flash_attention(q, k, v, causal=True)"
BRANCH = "if q.dtype in (torch.bfloat16, torch.float16):\n            " + CALL
IN_FP32 = "return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)"


def judged(text: str, folder: Path) -> dict[str, GradedCheck]:
    (folder / grade.PROGRAM).write_text(text)
    return {check.name: check for check in EXERCISE.repair(folder, Answers({}))}


@pytest.mark.parametrize("old", ["", BRANCH], ids=["the solution", "torch's own in every dtype"])
def test_repairs_are_accepted(old: str, tmp_path: Path) -> None:
    assert old in SOLVED
    found = judged(SOLVED.replace(old, "pass") if old else SOLVED, tmp_path)
    assert found["result"].status is CheckStatus.PASSED, found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(CALL, "return v", id="attention deleted in bfloat16"),
        pytest.param("v, causal=True", "v, causal=False", id="the mask left out in bfloat16"),
        pytest.param("is_causal=True", "is_causal=False", id="the mask left out in float32"),
        pytest.param("v, causal=True)", "v, causal=True, scale=0.2)", id="another scale"),
        pytest.param(CALL, "return flash_attention(q.detach(), k, v, causal=True)", id="a gradient left out"),
        pytest.param(CALL, CALL.replace("q, k, v", "q.half(), k.half(), v.half()") + ".float()", id="half"),
        pytest.param("for loss in losses]", "for loss in losses[:1] * len(losses)]", id="a loss repeated"),
        pytest.param("return [float(loss)", "return [1.0347 + 0 * float(loss)", id="hard-coded losses"),
        pytest.param("        job.optimizer.step()\n", "", id="the step left out"),
    ],
)
def test_what_computes_something_else_is_rejected(old: str, new: str, tmp_path: Path) -> None:
    assert old in SOLVED
    found = judged(SOLVED.replace(old, new), tmp_path)
    assert found["result"].status is CheckStatus.FAILED, found
    assert "unchanged" in judged((EXERCISE.folder / grade.PROGRAM).read_text(), tmp_path)["result"].message


def test_commands_of_the_readme_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / "run.sqlite").rename(folder / "run1.sqlite")
    text = (EXERCISE.folder / "README.md").read_text()
    commands = re.findall(r"^    profiling-lab (.+?)(?:\s+#.*)?$", text, re.M)
    assert len(commands) >= 6 and len(workspace.hints(EXERCISE)) == 3
    for command in commands:
        arguments = command.split()
        build_parser().parse_args(arguments)
        if "run1.sqlite" in arguments:
            assert main(arguments) in (0, 1), f"{command}: {capsys.readouterr().err}"


def test_answer_file_names_what_is_graded() -> None:
    names = set(read_answers(EXERCISE.folder).values)
    assert {f"{rung}.{key}" for rung in grade.KERNELS for key in ("intensity", "rate", "busiest")} <= names
