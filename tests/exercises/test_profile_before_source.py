# SPDX-License-Identifier: Apache-2.0
"""E37: the traces show what is asked for without the programs' text, the known answers were measured."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPO
from exercises.readme_commands import run_all

from profiling_lab.cli import main
from profiling_lab.exercises import answers, find, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e37_profile_before_source import grade
from profiling_lab.exercises.exercise import CheckStatus
from profiling_lab.rules import RULES
from profiling_lab.rules.run import run
from profiling_lab.trace import Trace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXERCISE = find("profile-before-source")
SOLUTIONS = EXERCISE.folder / "solutions"
BENCHMARK = REPO / "benchmarks" / "diagnosis"
ON_GPU = [name for name, known in grade.KNOWN.items() if known.cause]
RULE_OF = {
    "garbage collection": "gap_cause",
    "no tensor cores": "tensor_cores",
    "pageable copy": "pageable_copy",
}
every_round = pytest.mark.parametrize("name", grade.KNOWN)
every_gpu_round = pytest.mark.parametrize("name", ON_GPU)


def measured(program: str) -> dict[str, float]:
    times = {}
    for line in (REPO / "benchmarks" / "results" / "diagnosis.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["case"].get("program") == program and row["metric"] == "step":
            times[row["provider"]] = row["value"]
    return times


@every_round
def test_no_trace_has_text_of_the_program_or_its_name(name: str) -> None:
    known = grade.KNOWN[name]
    for program, recorded in zip(grade.PROGRAMS, known.recorded, strict=True):
        with sqlite3.connect(grade.recording(name, program)) as file:
            assert file.execute("SELECT count(*) FROM PYREC_SOURCE").fetchone() == (0,)
            text = "\n".join(file.iterdump())
        planted = grade.source(name).read_text().splitlines()[known.lines[0] - 1].strip()
        assert planted not in text and "/work/" not in text and "/root/" not in text
        assert not recorded or f"{recorded}.py" not in text


@every_gpu_round
def test_the_slow_program_is_the_measured_one_and_its_line_is_planted(name: str) -> None:
    known = grade.KNOWN[name]
    program = known.recorded[grade.PROGRAMS.index(known.program)]
    truth = tomllib.loads((BENCHMARK / "truth.toml").read_text())
    source = BENCHMARK / "programs" / f"{program}.py"
    assert grade.source(name).read_text() == source.read_text(), (
        "the worked answer shows the recorded program"
    )
    lines = source.read_text().splitlines()
    assert {lines[number - 1].strip() for number in known.lines} == set(truth[program]["lines"])
    assert measured(program) == {"as it is": known.step_ms, "mended": known.repaired_ms}
    for other in set(known.recorded) - {program}:
        times = measured(other)
        assert not truth[other]["causes"] and times["mended"] > 0.9 * times["as it is"]


@every_gpu_round
def test_the_trace_alone_names_the_line_and_the_cause(name: str) -> None:
    known = grade.KNOWN[name]
    for program in grade.PROGRAMS:
        with Trace.open(grade.recording(name, program)) as trace:
            found = run(trace, RULES).findings
        high = [finding for finding in found if finding.severity == "high"]
        if program != known.program:
            assert not high, f"{program} of {name} is healthy"
            continue
        assert high[0].rule == RULE_OF[known.cause] and high[0].place
        assert high[0].place.line in known.lines


def test_the_programs_of_the_sampled_round_print_the_same(tmp_path: Path) -> None:
    """With fewer records: all of them take a minute under load."""
    printed = set()
    for program in grade.PROGRAMS:
        text = (SOLUTIONS / f"round4_{program}.py").read_text()
        (tmp_path / "program.py").write_text(text.replace("RECORDS = 90_000", "RECORDS = 900"))
        done = subprocess.run(
            (sys.executable, "program.py"), cwd=tmp_path, check=True, capture_output=True, text=True
        )
        printed.add(done.stdout)
    assert len(printed) == 1 and "900 visits" in printed.pop()


def test_the_samples_tell_the_part_and_the_function() -> None:
    path = grade.recording("round4", "b")
    share, function = grade.sampled(path, 30)
    assert function == "inspect.stack" and share == pytest.approx(92.1, abs=0.05)
    assert grade.sampled(path, 49)[1] == "program.Counters.add", "a caller calls another function"
    assert grade.sampled(path, 7)[0] == 0


def test_the_notes_have_the_figures_of_the_recordings() -> None:
    notes = (SOLUTIONS / workspace.NOTES).read_text()
    for program in grade.PROGRAMS:
        with Trace.open(grade.recording("round4", program)) as trace:
            number = sum(each.ns for each in grade.host_stacks(trace)) // 1_000_000
        assert f"{number:,}" in notes
    for name in ON_GPU:
        known = grade.KNOWN[name]
        assert f"{100 * (1 - known.repaired_ms / known.step_ms):.1f} %" in notes


@every_round
def test_either_of_the_right_lines_and_other_spellings_pass(name: str) -> None:
    given = answers.read(SOLUTIONS)
    known = grade.KNOWN[name]
    cause = f"  {given.values[f'{name}.cause']!s}  " if known.cause else "inspect.stack()"
    for line in known.lines:
        changed = given.replaced(
            {f"{name}.line": line, f"{name}.program": known.program.upper(), f"{name}.cause": cause}
        )
        assert not [c for c in EXERCISE.findings(Path(), changed) if c.status is CheckStatus.FAILED]


def test_nothing_answered_is_told_one_by_one() -> None:
    checks = EXERCISE.findings(Path(), Answers({}))
    assert len(checks) == 20 and all("not answered yet" in check.message for check in checks)


def test_the_code_opens_with_the_worked_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["exercise", "solution", "37"]) == 0
    shown = capsys.readouterr().out
    for name, known in grade.KNOWN.items():
        text = grade.source(name).read_text().splitlines()[known.lines[0] - 1]
        assert f"{known.lines[0]:4} {text}" in shown
    copy = workspace.start(EXERCISE, tmp_path / "copy")
    assert not list(copy.rglob("*.py"))


def test_the_table_of_causes_is_that_of_the_check() -> None:
    text = (EXERCISE.folder / "README.md").read_text()
    assert tuple(re.findall(r"^\| `([^`]+)` \|", text.partition("| cause |")[2], re.M)) == grade.CAUSES


def test_commands_of_the_readme_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run_all(EXERCISE, tmp_path, monkeypatch)) >= 12
    assert len(workspace.hints(EXERCISE)) == 3
