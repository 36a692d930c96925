# SPDX-License-Identifier: Apache-2.0
"""E21: findings are judged from the samples at hand, repairs by the instructions they need."""

from __future__ import annotations

import re
import shutil
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest
from builders import TraceBuilder

from profiling_lab.cli import build_parser, main
from profiling_lab.exercises import find, program_repair, work_repair, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e21_cpu_sampling.grade import WORK, half_width
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck, Need

EXERCISE = find("cpu-sampling")
STARTER = EXERCISE.folder / "prepare.py"
SOLUTION = EXERCISE.folder / workspace.SOLUTIONS / "prepare.py"
MS = 1_000_000


def line_of(text: str) -> int:
    found = [i for i, line in enumerate(STARTER.read_text().splitlines(), 1) if text in line]
    assert len(found) == 1, f"{text!r} stands {len(found)} times in prepare.py"
    return found[0]


def made(path: Path, shift: int = 0, hot: int = 60) -> Path:
    """100 samples: `hot` in the planted line (of these three quarters for place), the others elsewhere."""
    builder = TraceBuilder()

    def at(text: str, function: str) -> str:
        return f"/home/learner/prepare.py:{line_of(text) + shift} {function}"

    main_line = at("sequences = prepare(", "main")
    room = f"{at('sum(len(tokens) for tokens in', 'Sequence.room')} > " + at(
        "sum(len(tokens) for tokens in", "Sequence.room.<locals>.<genexpr>"
    )
    place = at("fitting = [", "Packer.place.<locals>.<listcomp>")
    leftover = at("return sequence.room", "Packer.leftover")
    tokenizer = f"{main_line} > {at('for end in range(', 'tokenize')}"
    stacks = [f"{main_line} > {place} > {room}"] * (3 * hot // 4)
    stacks += [f"{main_line} > {leftover} > {room}"] * (hot - 3 * hot // 4)
    stacks += [tokenizer] * (80 - hot) + [main_line] * 20
    for number, stack in enumerate(stacks):
        builder.sample((1 + number) * MS, stack)
    return builder.write(path)


def answers(**changes: object) -> Answers:
    right = {
        "trace": "run.sqlite",
        "finding.file": "prepare.py",
        "finding.line": line_of("sum(len(tokens) for tokens in"),
        "finding.behind": "Packer.place",
        "finding.size": 60.0,
        "finding.plus_minus": 9.6,
        "fix.cause": "I saw it",
        "fix.change": "I changed it",
    }
    return Answers({**right, **{f"finding.{key}": value for key, value in changes.items()}})


def findings(folder: Path, **changes: object) -> dict[str, GradedCheck]:
    return {check.name: check for check in EXERCISE.findings(folder, answers(**changes))}


def failed(checks: dict[str, GradedCheck]) -> set[str]:
    return {name for name, check in checks.items() if check.status is CheckStatus.FAILED}


def test_what_a_learner_reads_from_the_table_is_right(tmp_path: Path) -> None:
    made(tmp_path / "run.sqlite")
    checks = findings(tmp_path)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks
    assert checks["recording"].message == "your own"


def test_half_of_the_interval_is_the_binomial_one() -> None:
    assert half_width(0.5, 100) == pytest.approx(9.8, abs=0.01)
    assert half_width(0.5, 10_000) == pytest.approx(0.98, abs=0.001)


@pytest.mark.parametrize(
    ("answer", "check"),
    [
        ({"line": 79}, "line"),
        ({"line": 47}, "line"),
        ({"behind": "Packer.leftover"}, "behind"),
        ({"behind": "tokenize"}, "behind"),
        ({"size": 54.9}, "size"),  # copied from the recording that comes with the exercise
        ({"size": 0.6}, "size"),
        ({"plus_minus": 1.9}, "interval"),
        ({"plus_minus": 0.096}, "interval"),
    ],
)
def test_wrong_answers_are_rejected(answer: dict[str, object], check: str, tmp_path: Path) -> None:
    made(tmp_path / "run.sqlite")
    assert failed(findings(tmp_path, **answer)) == {check}


def test_lines_of_another_version_of_the_program_are_rejected(tmp_path: Path) -> None:
    made(tmp_path / "run.sqlite", shift=2)
    assert failed(findings(tmp_path)) == {"line"}
    assert not failed(findings(tmp_path, line=line_of("sum(len(tokens) for tokens in") + 2))


def test_a_recording_of_the_repaired_program_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "run.sqlite", hot=4)
    checks = findings(tmp_path)
    assert failed(checks) == {"recording"} and "does not show the problem" in checks["recording"].message
    assert checks["interval"].status is CheckStatus.NOT_CHECKED


def test_a_recording_without_samples_says_which_option_takes_them(tmp_path: Path) -> None:
    TraceBuilder().launch("kernel", 1000, stack="prepare.py:1 main").write(tmp_path / "run.sqlite")
    checks = findings(tmp_path)
    assert failed(checks) == {"recording"} and "--sample-python" in checks["recording"].message


def test_profile_samples_and_needs_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Need, "missing", lambda self: "no GPU here")
    folder = tmp_path / "copy"
    main(["exercise", "start", "21", "--to", str(folder)])
    (folder / "prepare.py").write_text("print('prepared')\n")
    assert main(["exercise", "profile", str(folder)]) == 0
    assert 'trace = "run1.sqlite"' in (folder / "answer.toml").read_text()
    shown = capsys.readouterr().out
    assert "record -o run1.sqlite --sample-python prepare.py" in shown
    assert "profiling-lab lines --host " in shown


# Repairs.

CACHED = """

_prepare, _remembered = prepare, {}


def prepare(documents, vocabulary, length=2048):
    key = tuple(documents)
    if key not in _remembered:
        _remembered[key] = _prepare(documents, vocabulary, length)
    return _remembered[key]
"""
BY_FORK = """

_prepare = prepare


def prepare(documents, vocabulary, length=2048):
    import os, pickle
    reading, writing = os.pipe()
    if os.fork() == 0:
        with os.fdopen(writing, "wb") as file:
            pickle.dump(_prepare(documents, vocabulary, length), file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        return pickle.load(file)
"""
IN_A_THREAD = """

_prepare = prepare


def prepare(documents, vocabulary, length=2048):
    import threading
    found = []
    thread = threading.Thread(target=lambda: found.append(_prepare(documents, vocabulary, length)))
    thread.start()
    thread.join()
    return found[0]
"""
UNTRACED = """

_prepare = prepare


def prepare(documents, vocabulary, length=2048):
    import sys
    trace = sys.gettrace()
    sys.settrace(None)
    found = _prepare(documents, vocabulary, length)
    sys.settrace(trace)
    return found
"""
HARD_CODED = """

def prepare(documents, vocabulary, length=2048):
    return [[[1, 2, 3]]]
"""


def judge(text: str, folder: Path) -> dict[str, GradedCheck]:
    path = folder / "prepare.py"
    path.write_text(text)
    return {check.name: check for check in work_repair.checks(STARTER, path, WORK)}


def test_solution_needs_less_than_half_of_the_work(tmp_path: Path) -> None:
    checks = judge(SOLUTION.read_text(), tmp_path)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks


@pytest.mark.parametrize(
    ("old", "new", "more", "hint"),
    [
        pytest.param("    return packer.finish()", "    return []", "", "sequences, expected", id="deleted"),
        pytest.param("", "", HARD_CODED, "sequence", id="hard-coded"),  # their number may be right by chance
        pytest.param("most_open=24", "most_open=1", "", "", id="fewer sequences to look at"),
        pytest.param("best = min(", "best = max(", "", "", id="another choice"),
        pytest.param("def prepare(", "def arrange(", "", "AttributeError", id="no prepare"),
        pytest.param("packer.place(tokens[:length])", "pass", "", "", id="no document placed"),
    ],
)
def test_programs_that_compute_something_else_are_rejected(
    old: str, new: str, more: str, hint: str, tmp_path: Path
) -> None:
    text = SOLUTION.read_text()
    assert old in text
    checks = judge(text.replace(old, new) + more, tmp_path)
    assert failed(checks) == {"result"} and hint in checks["result"].message


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        pytest.param("\nimport time as _time\n_time.sleep(0)\n", "the goal is", id="nothing changed"),
        pytest.param(CACHED, "the goal is", id="cached between runs"),
        pytest.param(IN_A_THREAD, "the goal is", id="moved to a thread"),
        pytest.param(BY_FORK, "another process", id="moved to a process"),
        pytest.param(UNTRACED, "switches off", id="tracing switched off"),
    ],
)
def test_the_same_work_elsewhere_is_no_repair(more: str, hint: str, tmp_path: Path) -> None:
    checks = judge(STARTER.read_text() + more, tmp_path)
    assert failed(checks) == {"work"} and hint in checks["work"].message


def test_a_faster_tokenizer_alone_does_not_reach_the_goal() -> None:
    """The planted line has more instructions than everything else, whatever the machine."""
    program = program_repair.load(STARTER, "traced_prepare")
    lines: Counter[int] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> object:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and frame.f_code.co_filename == str(STARTER):
            lines[frame.f_lineno] += 1
        return trace

    data = WORK.data(program, 7, False)
    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        program.prepare(*data)
    finally:
        sys.settrace(before)
    assert lines[line_of("sum(len(tokens) for tokens in")] > 0.5 * lines.total()


def test_counting_leaves_no_trace_function_and_no_thread() -> None:
    before = sys.gettrace(), threading.active_count()
    counted = work_repair.Counted(sum, [1, 2])
    assert (sys.gettrace(), threading.active_count()) == before and counted.result == 3


def test_counted_instructions_are_the_same_each_time() -> None:
    def work() -> int:
        return sum(each * each for each in range(100))

    numbers = {work_repair.Counted(work).instructions for _ in range(3)}
    assert len(numbers) == 1 and numbers.pop() > 500


# What a learner reads.


def test_commands_of_the_readme_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "run1.sqlite")
    commands = re.findall(
        r"^    profiling-lab (.+?)(?:\s+#.*|    a .*)?$", (EXERCISE.folder / "README.md").read_text(), re.M
    )
    assert len(commands) >= 8
    for command in commands:
        arguments = command.split()
        build_parser().parse_args(arguments)
        if "run1.sqlite" in arguments:
            assert main(arguments) == 0, f"{command}: {capsys.readouterr().err}"
    assert (tmp_path / "host.speedscope.json").stat().st_size > 100


def test_three_hints_and_the_goal_of_the_judge() -> None:
    assert len(workspace.hints(EXERCISE)) == 3
    assert "at most half of the Python instructions" in (EXERCISE.folder / "README.md").read_text()
    assert WORK.at_most_frac == 0.5


def test_the_program_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(STARTER, tmp_path)
    program = program_repair.load(tmp_path / "prepare.py", "run_prepare")
    sequences = program.prepare(program.make_documents(50), program.make_vocabulary())
    assert sum(len(documents) for documents in sequences) == 50
