# SPDX-License-Identifier: Apache-2.0
"""E31: which line compiles and which one waits is read from samples; a repaired program compiles once and
waits before it reads the clock. Repairs are judged where JAX is installed.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import build_parser, main
from profiling_lab.exercises import find, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e31_jax_timing import repair as judge
from profiling_lab.exercises.e31_jax_timing.samples import compiling_ns
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck, Need
from profiling_lab.rules import RULES
from profiling_lab.rules.run import run
from profiling_lab.trace import Trace

EXERCISE = find("jax-timing")
STARTER = EXERCISE.folder / "train.py"
SOLUTION = (EXERCISE.folder / workspace.SOLUTIONS / "train.py").read_text()
MS = 1_000_000
SITE = "/usr/lib/python3/site-packages/jax/_src"
COMPILE = f"{SITE}/compiler.py:353 backend_compile_and_load"
VALUE = f"{SITE}/array.py:623 ArrayImpl._value"
LOWER = f"{SITE}/interpreters/mlir.py:627 make_ir_context"


def line_of(text: str) -> int:
    found = [i for i, line in enumerate(STARTER.read_text().splitlines(), 1) if text in line]
    assert len(found) == 1, f"{text!r} stands {len(found)} times in train.py"
    return found[0]


UPDATE, WAIT = line_of("params, loss = update("), line_of("losses.append(float(loss))")


def made(path: Path, compiling: int = 60, waiting: int = 20, shift: int = 0) -> Path:
    """100 samples: in the compiler, in the wait for a value, in the lowering, and 5 before the loop."""
    file = "/home/learner/train.py"
    update = f"{file}:{UPDATE + shift} train"
    stacks = [f"{update} > {COMPILE}"] * compiling
    stacks += [f"{file}:{WAIT + shift} train > {VALUE}"] * waiting
    stacks += [f"{update} > {LOWER}"] * (95 - compiling - waiting)
    stacks += [f"{file}:15 <module> > {SITE}/compiler.py:1 <module>"] * 5
    builder = TraceBuilder()
    for number, stack in enumerate(stacks):
        builder.sample((1 + number) * MS, stack)
    return builder.write(path)


def made_on_gpu(path: Path, compiling: bool) -> Path:
    """60 short steps; with `compiling`, every fourth one is compiled first, while the GPU is idle."""
    builder, update = TraceBuilder(), f"/home/learner/train.py:{UPDATE} train"
    for step in range(60):
        if compiling and step % 4 == 0:
            for ms in range(1, 100, 5):
                builder.sample(builder.now_ns + ms * MS, f"{update} > {COMPILE}")
            builder.gap(100 * MS)
        builder.launch("loop_fusion", 300_000, stack=update)
    return builder.write(path)


def answers(**changes: object) -> Answers:
    right = {
        "trace": "run.sqlite",
        "finding.file": "train.py",
        "finding.line": UPDATE,
        "finding.size": 75.0,
        "finding.behind": "backend_compile_and_load",
        "finding.wait_line": WAIT,
        "finding.wait_share": 20.0,
        "fix.cause": "I saw it",
        "fix.change": "I changed it",
    }
    return Answers({**right, **{f"finding.{key}": value for key, value in changes.items()}})


def findings(folder: Path, **changes: object) -> dict[str, GradedCheck]:
    return {check.name: check for check in EXERCISE.findings(folder, answers(**changes))}


def failed(checks: dict[str, GradedCheck]) -> set[str]:
    return {name for name, check in checks.items() if check.status is CheckStatus.FAILED}


def test_what_a_learner_reads_from_the_tables_is_right(tmp_path: Path) -> None:
    made(tmp_path / "run.sqlite")
    checks = findings(tmp_path)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks


@pytest.mark.parametrize(
    ("answer", "check"),
    [
        ({"line": WAIT, "size": 20.0}, "line size"),
        ({"line": line_of("x = jax.nn.relu(x @ weight)")}, "line"),
        ({"file": "compiler.py"}, "line"),
        ({"size": 67.2}, "size"),  # copied from the recording that comes with the exercise
        ({"size": 0.75}, "size"),
        ({"behind": "make_ir_context"}, "behind"),
        ({"behind": "ArrayImpl._value"}, "behind"),
        ({"wait_line": UPDATE}, "wait"),
        ({"wait_line": line_of("times.append(")}, "wait"),
        ({"wait_share": 15.9}, "wait_share"),
        ({"wait_share": 0.2}, "wait_share"),
    ],
)
def test_wrong_answers_are_rejected(answer: dict[str, object], check: str, tmp_path: Path) -> None:
    made(tmp_path / "run.sqlite")
    assert failed(findings(tmp_path, **answer)) == set(check.split())


def test_the_line_that_waits_is_called_by_its_name(tmp_path: Path) -> None:
    made(tmp_path / "run.sqlite")
    assert "waits until something is computed" in findings(tmp_path, line=WAIT)["line"].message


def test_lines_of_another_version_of_the_program_are_rejected(tmp_path: Path) -> None:
    made(tmp_path / "run.sqlite", shift=20)
    assert failed(findings(tmp_path)) == {"line", "wait"}


def test_a_recording_of_the_repaired_program_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "run.sqlite", compiling=3, waiting=90)
    checks = findings(tmp_path)
    assert failed(checks) == {"recording"} and "does not show the problem" in checks["recording"].message


def test_where_no_sample_waits_that_is_not_judged(tmp_path: Path) -> None:
    """On a GPU the step is shorter than the time between two samples."""
    made(tmp_path / "run.sqlite", waiting=0)
    checks = findings(tmp_path, size=95.0)
    assert not failed(checks)
    assert checks["wait"].status is checks["wait_share"].status is CheckStatus.NOT_CHECKED


@pytest.mark.parametrize(
    ("compiling", "status"), [(15, CheckStatus.PASSED), (16, CheckStatus.FAILED), (60, CheckStatus.FAILED)]
)
def test_the_recording_of_the_repair_must_compile_a_quarter_at_most(
    compiling: int, status: CheckStatus, tmp_path: Path
) -> None:
    made(tmp_path / "run.sqlite")
    made(tmp_path / "after.sqlite", compiling=compiling)
    given = Answers({**answers().values, "fix.after": "after.sqlite"})
    (tmp_path / "train.py").write_text(STARTER.read_text())
    checks = {check.name: check for check in EXERCISE.repair(tmp_path, given)}
    assert checks["after"].status is status, checks["after"]


def test_recorded_starter_compiles_and_recorded_solution_does_not() -> None:
    recorded = EXERCISE.folder / workspace.RECORDED
    before, after = (compiling_ns(recorded / f"{name}_cpu.sqlite") for name in ("starter", "solution"))
    assert before and after is not None and after <= 0.25 * before


def test_check_names_the_line_in_a_recording_with_a_gpu_and_not_after_the_repair(tmp_path: Path) -> None:
    with Trace.open(made_on_gpu(tmp_path / "before.sqlite", compiling=True)) as trace:
        found = {f.rule: f.place for f in run(trace, RULES).findings}
    named = [found[rule] for rule in EXERCISE.rules]
    assert all(place is not None and place.line == UPDATE for place in named), found
    with Trace.open(made_on_gpu(tmp_path / "after.sqlite", compiling=False)) as trace:
        assert not {f.rule for f in run(trace, RULES).findings} & set(EXERCISE.rules)


# The times of the steps, on readings that are made here.

R = judge.Reading


@pytest.mark.parametrize(
    ("times", "readings", "wrong"),
    [
        ([2.0, 3.0], [R(0, 0, False), R(2, 1, False), R(5, 1, False), R(8, 2, False)], ""),
        ([2.0], [R(0, 0, False), R(1, 0, False), R(2, 1, False)], ""),
        ([2.0], [R(0, 0, False), R(2, 1, True)], "still computes step 0"),
        ([2.0], [R(0, 0, True), R(2, 1, False)], "from before"),
        ([2.0], [R(0, 1, False), R(2, 1, False)], "does not hold one call"),
        ([2.0], [R(0, 0, False), R(2, 2, False)], "does not hold one call"),
        ([1.5], [R(0, 0, False), R(2, 1, False)], "is no difference"),
        ([2.0, 2.0], [R(0, 0, False), R(2, 1, False)], "time of step 1 is no difference"),
    ],
)
def test_a_time_is_that_of_its_step(times: list[float], readings: list[R], wrong: str) -> None:
    found = judge.untimed(times, readings)
    assert wrong in found and bool(wrong) == bool(found), found


# Without JAX.


def test_without_jax_a_repair_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Need, "missing", lambda self: "JAX is not installed (pip install jax)")
    (tmp_path / "train.py").write_text(SOLUTION)
    checks = judge.checks(STARTER, tmp_path / "train.py")
    assert {check.status for check in checks} == {CheckStatus.NOT_CHECKED}
    assert all("pip install jax" in check.message for check in checks)
    (tmp_path / "train.py").write_bytes(STARTER.read_bytes())
    assert "unchanged" in judge.checks(STARTER, tmp_path / "train.py")[0].message


def test_profile_says_that_jax_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Need, "missing", lambda self: "JAX is not installed (pip install jax)")
    monkeypatch.chdir(workspace.start(EXERCISE, tmp_path / "copy"))
    assert main(["exercise", "profile"]) == 3
    assert "pip install jax" in capsys.readouterr().err


# Repairs, with JAX.


def judged(text: str, folder: Path) -> dict[str, GradedCheck]:
    pytest.importorskip("jax", reason="JAX is not installed")
    (folder / "train.py").write_text(text)
    clock = time.perf_counter
    checks = {check.name: check for check in judge.checks(STARTER, folder / "train.py")}
    assert time.perf_counter is clock, "the clock is given back"
    return checks


def edited(old: str, new: str) -> str:
    assert old in SOLUTION, old
    return SOLUTION.replace(old, new)


CALL = "update(params, batch, settings, rate)"
BEGIN = "        begin = time.perf_counter()\n"
STEP = f"        params, loss = jax.block_until_ready({CALL})\n"
END = "        times.append(time.perf_counter() - begin)\n"
RETURN = "    return params, losses, times"
NO_WAIT = (STEP, STEP.replace(f"jax.block_until_ready({CALL})", CALL))
BY_FLOAT = (STEP, NO_WAIT[1] + "        float(loss)\n")
IN_NANOSECONDS = (
    BEGIN + STEP + END,
    "        begin = time.perf_counter_ns()\n"
    + STEP
    + "        times.append((time.perf_counter_ns() - begin) / 1e9)\n",
)


def by_name(text: str) -> str:
    """The function of the clock imported by its name."""
    return text.replace("import time\n", "from time import perf_counter\n").replace("time.perf_", "perf_")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SOLUTION, id="solution"),
        pytest.param(SOLUTION.replace(*BY_FLOAT), id="the value is the wait"),
        pytest.param(SOLUTION.replace(*IN_NANOSECONDS), id="nanoseconds"),
        pytest.param(by_name(SOLUTION), id="the function itself is imported"),
    ],
)
def test_repairs_pass(text: str, tmp_path: Path) -> None:
    checks = judged(text, tmp_path)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks


def test_a_jax_that_tells_of_no_compilation_is_not_judged_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "LOWERED", "an event of another version")
    checks = judged(SOLUTION, tmp_path)
    assert not failed(checks) and checks["compilations"].status is CheckStatus.NOT_CHECKED


DECORATED = '@partial(jax.jit, static_argnames="settings")'
REMEMBERED = """

_train, _found = train, []


def train(params, batches, settings):
    if not _found:
        _found.append(_train(params, batches, settings))
    return _found[0]
"""
NEW_JIT = """

def update(params, batch, settings, rate):
    return jax.jit(lambda p, b, r: _step(p, b, settings, r))(params, batch, rate)


def train("""


REJECTED = {
    "no wait": (SOLUTION.replace(*NO_WAIT), "timing", "still computes step 0"),
    "a wait at the end only": (
        SOLUTION.replace(*NO_WAIT).replace(RETURN, f"    jax.block_until_ready(params)\n{RETURN}"),
        "timing",
        "still computes step 0",
    ),
    "the time of nothing": (
        edited(BEGIN + STEP, STEP + BEGIN),
        "timing",
        "does not hold one call",
    ),
    "hard-coded times": (edited("time.perf_counter() - begin)", "0.0123)"), "timing", "is no difference"),
    "another time": (
        edited("append(time.perf_counter() - begin)", "append(2 * (time.perf_counter() - begin))"),
        "timing",
        "is no difference",
    ),
    "still static": (
        edited('static_argnames="settings"', 'static_argnames=("settings", "rate")'),
        "compilations",
        "at most 2",
    ),
    "a new function each time": (
        edited(DECORATED, "").replace("def update(", "def _step(").replace("\n\ndef train(", NEW_JIT),
        "compilations",
        "at most 2",
    ),
    "a constant rate": (edited("0.9 ** (number // 4)", "0.9"), "result", "differ by"),
    "deleted work": (edited("settings.decay * w", "0.0 * w"), "result", "differ by"),
    "the same batch": (edited(STEP, STEP.replace("batch,", "batches[0],")), "result", "differ by"),
    "remembered": (SOLUTION + REMEMBERED, "result", "9 losses"),
    "fewer steps": (edited("enumerate(batches)", "enumerate(batches[:5])"), "result", "5 losses"),
    "no train": (edited("def train(", "def learn("), "result", "AttributeError"),
    "nothing changed": (STARTER.read_text() + "\n", "compilations timing", ""),
}


@pytest.mark.parametrize(("text", "check", "hint"), REJECTED.values(), ids=REJECTED)
def test_other_repairs_are_rejected(text: str, check: str, hint: str, tmp_path: Path) -> None:
    checks = judged(text, tmp_path)
    names = check.split()
    assert failed(checks) == set(names), checks
    assert hint in checks[names[0]].message


# What a learner reads.


def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    from profiling_lab.exercises.program_repair import load

    monkeypatch.setattr(sys, "argv", ["train.py", "--steps", "3"])
    load(STARTER, "starter_program_of_a_test").main()
    assert re.search(
        r"3 steps on \w+, loss .*\na step takes [\d.]+ ms; 3 steps took", capsys.readouterr().out
    )


def test_commands_of_the_readme_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "run1.sqlite")
    made(tmp_path / "after.sqlite")
    made_on_gpu(tmp_path / "run2.sqlite", compiling=True)
    text = (EXERCISE.folder / "README.md").read_text()
    assert f"at most {judge.COMPILES_AT_MOST} compilations in {judge.STEPS} further steps" in text
    commands = re.findall(r"^    profiling-lab (.+?)(?:\s+#.*)?$", text, re.M)
    assert len(commands) >= 10
    for command in commands:
        arguments = command.split()
        build_parser().parse_args(arguments)
        if arguments[0] != "record" and {"run1.sqlite", "run2.sqlite", "after.sqlite"} & set(arguments):
            assert main(arguments) in (0, 1), f"{command}: {capsys.readouterr().err}"
    assert " ".join(EXERCISE.record_options) in text
    assert len(workspace.hints(EXERCISE)) == 3
