# SPDX-License-Identifier: Apache-2.0
"""E14: a benchmark is judged by its calls and clock readings on simulated devices. Nothing is timed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from profiling_lab.cli import build_parser, main
from profiling_lab.errors import UnreadableInputError
from profiling_lab.exercises import answers, find, program_repair, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e14_single_gpu_baseline import grade
from profiling_lab.exercises.e14_single_gpu_baseline import repair as judge
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck

EXERCISE = find("single-gpu-baseline")
SOLUTION = (EXERCISE.folder / workspace.SOLUTIONS / "benchmark.py").read_text()
STARTER = (EXERCISE.folder / "benchmark.py").read_text()


def judged(text: str, folder: Path) -> dict[str, GradedCheck]:
    (folder / "benchmark.py").write_text(text)
    return {check.name: check for check in judge.checks(folder, seed=3)}


def edited(*changes: tuple[str, str]) -> str:
    """The solution with one error in it."""
    text = SOLUTION
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def errors_of(text: str, folder: Path) -> set[str]:
    (folder / "benchmark.py").write_text(text)
    with judge.device_module() as device:
        program = program_repair.load(folder / "benchmark.py", "benchmark_of_a_test")
        found, intervals = judge.watched(program, device.SimulatedGPU(3, 1.7, 0.9))
    assert not judge.unreal(found, intervals), judge.unreal(found, intervals)
    return set(judge.errors(found, intervals))


def test_the_starter_has_every_error_that_can_be_seen_and_the_solution_none(tmp_path: Path) -> None:
    assert errors_of(STARTER, tmp_path) == set(judge.ERRORS) == set(grade.planted()[0])
    assert errors_of(SOLUTION, tmp_path) == set()


ONE_ERROR = {
    "no-synchronisation": [("    call(x)\n    device.synchronize()\n", "    call(x)\n")],
    "no-warm-up": [("WARM_UPS, INPUTS = 40, 40, 4", "WARM_UPS, INPUTS = 40, 0, 4")],
    "input-in-the-time": [("    call(x)\n", '    call(device.make_input("float32", 0))\n')],
    "different-dtype": [
        ("inputs[(2 * turn + 1) % INPUTS])", "halves[(2 * turn + 1) % INPUTS])"),
        (
            "    old_ms, new_ms = [], []\n",
            '    halves = [device.make_input("bfloat16", 0)] * INPUTS\n    old_ms, new_ms = [], []\n',
        ),
    ],
    "warm-cache": [("inputs[(2 * turn + 1) % INPUTS])", "inputs[2 * turn % INPUTS])")],
    "one-after-the-other": [
        (
            "        old = timed(device, device.old, inputs[2 * turn % INPUTS])\n",
            "    for turn in range(WARM_UPS + RUNS):\n"
            "        old = timed(device, device.old, inputs[turn % INPUTS])\n"
            "        if turn >= WARM_UPS:\n"
            "            old_ms.append(old)\n"
            "    for turn in range(WARM_UPS + RUNS):\n",
        ),
        ("            old_ms.append(old)\n            new_ms", "            new_ms"),
        (
            "    for turn in range(WARM_UPS + RUNS):  # in turns, each call with another input than the last "
            "one\n",
            "",
        ),
    ],
    "wrong-statistic": [("statistics.median(old_ms) /", "statistics.fmean(old_ms) /")],
}


@pytest.mark.parametrize("name", judge.ERRORS)
def test_each_error_alone_is_seen_and_rejected(name: str, tmp_path: Path) -> None:
    text = edited(*ONE_ERROR[name])
    found = errors_of(text, tmp_path)
    assert name in found and found <= {name, "warm-cache"}
    checks = judged(text, tmp_path)
    assert checks["fair"].status is CheckStatus.FAILED


def test_solution_passes_whatever_the_devices_are(tmp_path: Path) -> None:
    (tmp_path / "benchmark.py").write_text(SOLUTION)
    for seed in range(20):
        checks = judge.checks(tmp_path, seed=seed)
        assert {check.status for check in checks} == {CheckStatus.PASSED}, (seed, checks)


BATCHES = """

def compare(device):
    inputs = [device.make_input("float32", seed) for seed in range(4)]
    times = {"old": [], "new": []}
    for turn in range(60):
        for name in times:
            device.synchronize()
            begin = device.now()
            for number in range(5):
                getattr(device, name)(inputs[number % 4])
            device.synchronize()
            if turn >= 30:
                times[name].append(1e3 * (device.now() - begin) / 5)
    middle = {name: statistics.median(each) for name, each in times.items()}
    return {"old_ms": times["old"], "new_ms": times["new"], "speedup": middle["old"] / middle["new"]}
"""


def test_several_calls_in_one_time_are_as_fair(tmp_path: Path) -> None:
    """Readings that are thrown away, and times of several calls, are no error."""
    assert errors_of(SOLUTION + BATCHES, tmp_path) == set()


HARD_CODED = """

def compare(device):
    return {"old_ms": [1.25] * 40, "new_ms": [1.0] * 40, "speedup": 1.25}
"""
READS_THE_TRUTH = """

def compare(device):
    old, new = 1e3 * device.took_s["old"], 1e3 * device.took_s["new"]
    return {"old_ms": [old] * 40, "new_ms": [new] * 40, "speedup": old / new}
"""
OWN_INPUT = """

class Device:
    def __init__(self, device):
        self.now, self.synchronize = device.now, device.synchronize
        self.old, self.new = device.old, device.new

    def make_input(self, dtype, seed):
        return {"dtype": dtype, "seed": seed, "number": 0.5}


_compare = compare


def compare(device):
    return _compare(Device(device))
"""
REMEMBERED = """

_compare, _found = compare, []


def compare(device):
    if not _found:
        _found.append(_compare(device))
    return _found[0]
"""


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param(SOLUTION + HARD_CODED, "40 of the times in old_ms are not", id="hard-coded"),
        pytest.param(SOLUTION + READS_THE_TRUTH, "AttributeError", id="read from the device"),
        pytest.param(SOLUTION + OWN_INPUT, "did not make", id="an input of its own"),
        pytest.param(SOLUTION + REMEMBERED, "of the times in old_ms are not", id="cached between runs"),
        pytest.param(
            edited(("RUNS, WARM_UPS, INPUTS = 40,", "RUNS, WARM_UPS, INPUTS = 5,")),
            "at least 20",
            id="few runs",
        ),
        pytest.param(
            edited(("device, device.new, inputs", "device, device.old, inputs")),
            "new was called",
            id="one only",
        ),
        pytest.param(edited(('"new_ms": new_ms,', "")), "must return", id="no times"),
        pytest.param(edited(("def compare(", "def contrast(")), "AttributeError", id="no compare"),
    ],
)
def test_numbers_that_were_not_measured_are_rejected(text: str, hint: str, tmp_path: Path) -> None:
    checks = judged(text, tmp_path)
    assert checks["result"].status is CheckStatus.FAILED and hint in checks["result"].message


def test_untouched_program_is_no_repair(tmp_path: Path) -> None:
    assert "is unchanged" in judged(STARTER, tmp_path)["result"].message


def test_one_error_is_named_at_a_time(tmp_path: Path) -> None:
    checks = judged(STARTER + "\n", tmp_path)
    assert (
        checks["fair"].status is CheckStatus.FAILED
        and "while the GPU still has work" in checks["fair"].message
    )


def test_the_numbers_asked_for_are_those_that_the_programs_print(tmp_path: Path) -> None:
    """Deterministic on every machine: the times are simulated."""
    workspace.start(EXERCISE, tmp_path / "copy")
    given = answers.read(EXERCISE.folder / workspace.SOLUTIONS)
    for key in ("reported", "true"):
        shown = subprocess.run(
            (sys.executable, "benchmark.py"),
            cwd=tmp_path / "copy",
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        printed = re.search(r"speedup: ([\d.]+)", shown)
        assert printed and float(printed[1]) == given.number(f"finding.{key}")
        workspace.copy_solution(EXERCISE, tmp_path / "copy")


def test_errors_are_a_list_of_names() -> None:
    given = Answers({"finding.errors": "no-warm-up"})
    with pytest.raises(UnreadableInputError, match="must be a list of texts"):
        given.texts("finding.errors")
    with pytest.raises(UnreadableInputError, match="must be a list of texts"):
        Answers({"finding.errors": [1]}).texts("finding.errors")
    assert Answers({"finding.errors": []}).texts("finding.errors") is None


def test_the_table_of_the_readme_has_every_name() -> None:
    text = (EXERCISE.folder / "README.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.M)) == {*judge.ERRORS, *grade.OTHERS}


def test_the_real_device_has_the_same_methods() -> None:
    with judge.device_module() as device:
        real = device.TorchDevice(rows=2)
        x = real.make_input("float32", seed=1)
        real.synchronize()
        assert (real.old(x) - real.new(x)).abs().max() < 1e-5
        assert real.now() <= real.now()
        methods = {name for name in dir(device.SimulatedGPU) if not name.startswith("_")}
        assert methods <= set(dir(device.TorchDevice))


def test_profile_says_that_there_is_nothing_to_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["exercise", "start", "14", "--to", str(tmp_path / "copy")])
    assert main(["exercise", "profile", str(tmp_path / "copy")]) == 2
    assert "needs no recording" in capsys.readouterr().err
    assert main(["exercise", "start", "14", "--recorded", "--to", str(tmp_path / "other")]) == 3


def test_commands_of_the_readme_are_valid() -> None:
    text = (EXERCISE.folder / "README.md").read_text()
    commands = re.findall(r"^    profiling-lab (.+?)(?:\s+#.*)?$", text, re.M)
    assert len(commands) == 3
    for command in commands:
        build_parser().parse_args(command.split())
    assert len(workspace.hints(EXERCISE)) == 3
