# SPDX-License-Identifier: Apache-2.0
"""E24: the known answers are those of the diagnosis benchmark, a rule is judged by what it does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import REPO
from exercises.readme_commands import run_all

from profiling_lab.exercises import find, workspace
from profiling_lab.exercises.e24_expert_systems import grade, repair
from profiling_lab.exercises.exercise import CheckStatus
from profiling_lab.rules import RULES
from profiling_lab.rules.finding import with_effects
from profiling_lab.rules.load import load_rules
from profiling_lab.rules.run import run
from profiling_lab.trace import Trace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXERCISE = find("expert-systems")
BENCHMARK = REPO / "benchmarks" / "diagnosis"
every_recording = pytest.mark.parametrize("name", grade.KNOWN)


def recorded(name: str) -> Path:
    return EXERCISE.folder / "recorded" / f"{name}_h200.sqlite"


@every_recording
def test_all_findings_that_are_asked_for_are_there(name: str) -> None:
    known = grade.KNOWN[name]
    with Trace.open(recorded(name)) as trace:
        found = run(trace, RULES).findings
    top = {finding.rule for finding in found}
    everything = {finding.rule for finding in with_effects(found)}
    assert set(known.kinds) <= everything
    assert {rule for rule, kind in known.kinds.items() if kind == grade.CAUSE} <= top


@every_recording
def test_the_known_answers_are_those_of_the_benchmark(name: str) -> None:
    known = grade.KNOWN[name]
    truth = tomllib.loads((BENCHMARK / "truth.toml").read_text())[known.program]
    program = (BENCHMARK / "programs" / f"{known.program}.py").read_text().splitlines()
    planted = {number for number, text in enumerate(program, 1) if text.strip() in truth["lines"]}
    assert planted <= set(known.lines) and bool(planted) is bool(known.lines)
    assert all(min(abs(line - each) for each in planted) <= 1 for line in known.lines)
    causes = {"host_work": "gap_cause"}
    named = {causes.get(cause, cause) for cause in truth["causes"]}
    assert {rule for rule, kind in known.kinds.items() if kind == grade.CAUSE} <= named
    assert not named & {rule for rule, kind in known.kinds.items() if kind == grade.ALARM}
    times = {}
    for line in (REPO / "benchmarks" / "results" / "diagnosis.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["case"].get("program") == known.program and row["metric"] == "step":
            times[row["provider"]] = row["value"]
    assert times == {"as it is": known.step_ms, "mended": known.repaired_ms}


def judged(tmp_path: Path, text: str) -> dict[str, tuple[CheckStatus, str]]:
    (tmp_path / repair.FILE).write_text(text)
    return {check.name: (check.status, check.message) for check in repair.checks(tmp_path)}


def test_the_cases_of_the_rule_are_of_both_kinds() -> None:
    solution = load_rules(EXERCISE.folder / "solutions" / repair.FILE)[0]
    fires = [bool(case.found(solution)) for case in repair.cases()]
    assert fires.count(True) >= 3 and fires.count(False) >= 3


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("RULES = (", "cannot be executed, line 1"),
        ("RULES = ()", "must define RULES"),
        ("import nonsense_that_is_not_there", "cannot be executed"),
        (None, "there is no rules file"),
    ],
)
def test_a_file_that_is_no_rule_is_one_sentence(tmp_path: Path, text: str | None, hint: str) -> None:
    if text is not None:
        (tmp_path / repair.FILE).write_text(text)
    checks = repair.checks(tmp_path)
    assert checks[0].status is CheckStatus.FAILED and hint in checks[0].message
    assert {check.status for check in checks[1:]} == {CheckStatus.NOT_CHECKED}


def test_other_names_are_told(tmp_path: Path) -> None:
    text = (EXERCISE.folder / "solutions" / repair.FILE).read_text()
    assert (
        "no rule called small_copies" in judged(tmp_path, text.replace('"small_copies"', '"tiny"'))["rule"][1]
    )
    assert "no threshold called many" in judged(tmp_path, text.replace('"many"', '"enough"'))["rule"][1]


def test_an_error_in_the_rule_is_an_error(tmp_path: Path) -> None:
    text = (EXERCISE.folder / "solutions" / repair.FILE).read_text()
    found = judged(tmp_path, text.replace("took_ns.sum()", "took_ns.summ()"))
    assert found["rule fires"][0] is CheckStatus.FAILED and "line 28" in found["rule fires"][1]


def test_the_rule_alone_is_graded_by_repair(tmp_path: Path) -> None:
    folder = workspace.start(EXERCISE, tmp_path / "copy")
    workspace.copy_solution(EXERCISE, folder)
    _, grading = workspace.check_repair(folder)
    assert grading.passed and [check.name for check in grading.checks] == ["rule", *repair.CHECKS]


def test_commands_of_the_readme_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run_all(EXERCISE, tmp_path, monkeypatch)) >= 10
    assert len(workspace.hints(EXERCISE)) == 3
