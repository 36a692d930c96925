# SPDX-License-Identifier: Apache-2.0
"""E09: answers are judged from the Chrome trace at hand, the repair by results and operators."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from profiling_lab.cli import build_parser, main
from profiling_lab.exercises import find, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e09_basic_profiling.grade import PHASES, profiled
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck

EXERCISE = find("basic-profiling")
STARTER = (EXERCISE.folder / "profile_training.py").read_text()
SOLUTION = (EXERCISE.folder / workspace.SOLUTIONS / "profile_training.py").read_text()


class ChromeTrace:
    """A trace of torch.profiler with times chosen here, in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []
        self.now = 1000.0
        self.frame = 0

    def add(self, name: str, start: float, duration: float, category: str = "cpu_op", **args: object) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 1,
                "tid": 1,
                "ts": start,
                "dur": duration,
                "args": args,
            }
        )

    def step(
        self, number: int | None, phases: tuple[str, ...] = PHASES, stacks: bool = True, sort: bool = True
    ) -> None:
        """One step of 1000 us: 100 us for each phase but the last, which has 600."""
        begin = self.now
        if number is not None:
            self.add(f"ProfilerStep#{number}", begin, 1000, "user_annotation")
        if stacks:
            for name, start, duration in (("train", begin, 1000), ("hit_rate", begin + 400, 600)):
                self.frame += 1
                args = {
                    "Python id": self.frame,
                    "Python parent id": self.frame - 1 if name == "hit_rate" else None,
                }
                self.add(f"profile_training.py(30): {name}", start, duration, "python_function", **args)
        for index, phase in enumerate(PHASES):
            start, duration = begin + 100 * index, 600 if phase == "metrics" else 100
            if phase in phases:
                self.add(phase, start, duration, "user_annotation")
            if phase != "metrics":
                self.add("aten::mm", start + 10, 60)
        start = begin + 420
        if sort:
            self.add("aten::argsort", start, 560)
            self.add("aten::sort", start + 2, 556)
            self.add("aten::sort", start + 4, 552)
            self.add("aten::copy_", start + 10, 52)
        else:
            self.add("aten::topk", start, 20)
        self.now += 1000

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": self.events}))
        return path


def made(path: Path, first: int | None = 4, steps: int = 3, **how: object) -> Path:
    trace = ChromeTrace()
    for number in range(steps):
        trace.step(None if first is None else first + number, **how)  # type: ignore[arg-type]
    return trace.write(path)


def answers(**changes: object) -> Answers:
    right = {
        "trace": "trace.json",
        "profile.first_step": 4,
        "finding.op": "aten::sort",
        "finding.self_share": 50.4,  # 556 - 52 of 1000
        "finding.wrapper": "aten::argsort",
        "finding.phase": "metrics",
        "finding.function": "hit_rate",
        "fix.cause": "I saw it",
        "fix.change": "I changed it",
    }
    return Answers({**right, **changes})


def findings(folder: Path, **changes: object) -> dict[str, GradedCheck]:
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    return {check.name: check for check in EXERCISE.findings(folder, answers(**changed))}


def failed(checks: dict[str, GradedCheck]) -> set[str]:
    return {name for name, check in checks.items() if check.status is CheckStatus.FAILED}


def test_what_a_learner_reads_from_the_trace_is_right(tmp_path: Path) -> None:
    made(tmp_path / "trace.json")
    checks = findings(tmp_path)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks
    assert checks["recording"].message == "your own"


def test_own_and_total_times_of_a_trace(tmp_path: Path) -> None:
    found = profiled(made(tmp_path / "trace.json"))
    assert (found.steps, found.step_ns) == ((4, 5, 6), 3_000_000)
    assert found.self_ns["aten::sort"] == 3 * 504_000 and found.self_ns["aten::argsort"] == 3 * 4_000
    assert found.total_ns["aten::sort"] == 3 * 556_000, "a call of itself is not counted again"
    assert found.around["aten::sort"] == {"aten::argsort"} and found.phase_of["aten::mm"] in PHASES


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"finding__op": "aten::argsort"}, "op"),
        ({"finding__op": "aten::mm"}, "op"),
        ({"finding__op": "sort"}, "op"),
        ({"finding__self_share": 66.7}, "share"),  # copied from the trace that comes with the exercise
        ({"finding__self_share": 110.8}, "share"),  # total times, nested ones counted twice
        ({"finding__self_share": 0.504}, "share"),
        ({"finding__wrapper": "metrics"}, "wrapper"),
        ({"finding__wrapper": "aten::copy_"}, "wrapper"),
        ({"finding__phase": "backward"}, "phase"),
        ({"finding__function": "train"}, "function"),
        ({"profile__first_step": 5}, "steps"),
    ],
)
def test_wrong_answers_are_rejected(changes: dict[str, object], check: str, tmp_path: Path) -> None:
    made(tmp_path / "trace.json")
    assert failed(findings(tmp_path, **changes)) == {check}


@pytest.mark.parametrize(
    ("how", "check", "hint"),
    [
        ({"first": None}, "steps", "give profile a schedule"),
        ({"first": 0}, "steps", "begins with the first steps"),
        ({"steps": 5}, "steps", "5 steps, expected 3"),
        ({"phases": ("data", "forward", "backward", "metrics")}, "phases", "no|optimizer"),
        ({"stacks": False}, "function", "with_stack=True"),
        ({"sort": False}, "recording", "does not show the problem"),
    ],
)
def test_a_trace_of_something_else_says_what_is_missing(
    how: dict[str, object], check: str, hint: str, tmp_path: Path
) -> None:
    made(tmp_path / "trace.json", **how)  # type: ignore[arg-type]
    checks = findings(tmp_path)
    assert check in failed(checks) and re.search(hint, checks[check].message)
    assert failed(checks) <= {check, "phases"}


def test_an_unreadable_trace_is_said(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{")
    checks = findings(tmp_path)
    assert failed(checks) == {"recording"} and "exercise profile" in checks["recording"].message


def test_the_solution_profiles_as_the_readme_asks(tmp_path: Path) -> None:
    """With the torch that is installed: names and nesting of its traces are not ours."""
    (tmp_path / "profile_training.py").write_text(SOLUTION)
    subprocess.run(
        (sys.executable, "profile_training.py", "--small"), cwd=tmp_path, check=True, capture_output=True
    )
    found = profiled(tmp_path / "trace.json")
    assert found.steps == (4, 5, 6) and found.phases == set(PHASES)
    assert found.phase_of["aten::topk"] == "metrics" and found.function_of["aten::topk"] == "hit_rate"


def test_profile_runs_the_program_and_names_its_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    main(["exercise", "start", "9", "--to", str(folder)])
    (folder / "profile_training.py").write_text("open('trace.json', 'w').write('{}')\n")
    assert main(["exercise", "profile", str(folder)]) == 0
    assert 'trace = "trace.json"' in (folder / "answer.toml").read_text()
    assert "profiling-lab ranges --tree " in capsys.readouterr().out
    (folder / "profile_training.py").write_text("raise SystemExit(3)\n")
    assert main(["exercise", "profile", str(folder)]) == 3, "the trace of the run before is not this run's"
    assert "answer.toml now names" not in capsys.readouterr().out


# Repairs.

REMEMBERED = """

_train, _found = train, []


def train(steps, seed=0, size=(ROWS, WIDTH, CLASSES), after_step=lambda: None):
    if not _found:
        _found.extend(_train(steps, seed, size, after_step))
    return _found
"""
TOPK = "    best = scores.topk(k, dim=1).indices\n"


def judged(text: str, folder: Path) -> dict[str, GradedCheck]:
    (folder / "profile_training.py").write_text(text)
    return {check.name: check for check in EXERCISE.repair(folder, answers())}


def test_solution_computes_the_same_without_sorting(tmp_path: Path) -> None:
    checks = judged(SOLUTION, tmp_path)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks


def test_counting_higher_scores_is_as_good(tmp_path: Path) -> None:
    """Another way than ours."""
    text = SOLUTION.replace(TOPK, "    right = scores.gather(1, labels[:, None])\n").replace(
        "(best == labels[:, None]).any(dim=1)", "((scores > right).sum(dim=1) < k)"
    )
    checks = judged(text, tmp_path)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks


@pytest.mark.parametrize(
    ("old", "new", "more", "hint"),
    [
        pytest.param(
            "        loss.backward()\n", "        pass\n", "", "(loss|rate) of step", id="deleted computation"
        ),
        pytest.param(
            "return loss.detach(), rate", "return loss.detach(), rate * 0", "", "hit rate", id="hard-coded"
        ),
        pytest.param("k=5", "k=4", "", "hit rate", id="another question"),
        pytest.param("range(steps)", "range(1)", "", "results, expected", id="fewer steps"),
        pytest.param("", "", REMEMBERED, "(loss|rate) of step", id="cached between runs"),
        pytest.param("def train(", "def training(", "", "NameError|AttributeError", id="no train"),
    ],
)
def test_programs_that_compute_something_else_are_rejected(
    old: str, new: str, more: str, hint: str, tmp_path: Path
) -> None:
    assert old in SOLUTION
    checks = judged(SOLUTION.replace(old, new, 1) + more, tmp_path)
    assert checks["result"].status is CheckStatus.FAILED and re.search(hint, checks["result"].message)


@pytest.mark.parametrize(
    ("best", "hint"),
    [
        pytest.param("scores.argsort(dim=1, descending=True)[:, :k]", "aten::sort", id="nothing changed"),
        pytest.param(
            "scores.sort(dim=1, descending=True).indices[:, :k]", "aten::sort", id="by another name"
        ),
        pytest.param("scores.topk(scores.shape[1], dim=1).indices[:, :k]", "aten::topk of", id="topk of all"),
        pytest.param(
            "torch.from_numpy((-scores.numpy()).argsort(axis=1)[:, :k].copy())", "leave torch", id="in numpy"
        ),
        pytest.param(
            "torch.tensor([sorted(range(len(r)), key=lambda i: -r[i])[:k] for r in scores.tolist()])",
            "leave torch",
            id="in Python",
        ),
    ],
)
def test_the_same_sort_elsewhere_is_no_repair(best: str, hint: str, tmp_path: Path) -> None:
    checks = judged(SOLUTION.replace(TOPK, f"    best = {best}\n"), tmp_path)
    assert failed(checks) == {"work"} and hint in checks["work"].message


def test_untouched_program_is_no_repair(tmp_path: Path) -> None:
    assert "is unchanged" in judged(STARTER, tmp_path)["result"].message


# What a learner reads.


def test_commands_of_the_readme_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "trace.json")
    text = (EXERCISE.folder / "README.md").read_text()
    commands = re.findall(r"^    profiling-lab (.+?)(?:\s+#.*)?$", text, re.M)
    assert len(commands) >= 7
    for command in commands:
        arguments = command.split()
        build_parser().parse_args(arguments)
        if "trace.json" in arguments:
            assert main(arguments) == 0, f"{command}: {capsys.readouterr().err}"
    assert len(workspace.hints(EXERCISE)) == 3
