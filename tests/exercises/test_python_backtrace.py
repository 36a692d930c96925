# SPDX-License-Identifier: Apache-2.0
"""E17: both culprits are found, answers are judged from the learner's own recording, and only a true
repair passes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from conftest import REPO
from exercises.training_trace import FOLDER, line_of, training_trace

from profiling_lab.analysis.source_names import qualified
from profiling_lab.exercises import answers, find, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e17_python_backtrace import repair
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck
from profiling_lab.measure import Timing, interleaved
from profiling_lab.report import bottleneck
from profiling_lab.trace import Trace

EXERCISE = find("python-backtrace")
INPUTS = "x, self.w1, self.w2, self.w3, self.bias"
FORWARD = f"        return heavy_layer({INPUTS}, implementation=self.implementation)\n"
RIGHT = {
    "slow": {"finding.kernel": "heavy_layer_slow", "finding.share": 44.8},
    "loop": {"finding.kernel": "gemv_tiny<float>", "finding.share": 43.8},
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return workspace.start(EXERCISE, tmp_path / "copy")


def finding(culprit: str) -> dict[str, object]:
    line = line_of("model.py", FORWARD.strip())
    shared = {
        "finding.layer": "HeavyLayer",
        "finding.file": "model.py",
        "finding.line": line,
        "heavy": culprit,
    }
    return (
        shared
        | RIGHT[culprit]
        | {"fix.cause": "launches", "fix.change": "one product", "trace": "run.sqlite"}
    )


def graded(copy: Path, changes: dict[str, object]) -> dict[str, GradedCheck]:
    grading = EXERCISE.grade(copy, answers.read(copy).replaced(changes))
    return {check.name: check for check in grading.checks}


def repaired(copy: Path, body: str) -> list[GradedCheck]:
    """The checks of a model.py whose HeavyLayer.forward has that body."""
    text = (copy / "model.py").read_text()
    assert FORWARD in text
    (copy / "model.py").write_text(text.replace(FORWARD, f"        {body}\n"))
    return repair.checks(copy, Answers({"heavy": "slow"}))


@pytest.mark.parametrize("culprit", ["slow", "loop"])
def test_both_culprits_are_graded_from_the_learners_recording(copy: Path, culprit: str) -> None:
    training_trace(copy / "run.sqlite", culprit)
    checks = graded(copy, finding(culprit))
    for name in ("recording", "layer", "kernel", "line", "share", "explanation"):
        assert checks[name].status is CheckStatus.PASSED, checks[name]
    assert (
        checks["result"].status is CheckStatus.FAILED
        and "nothing is repaired yet" in checks["result"].message
    )


@pytest.mark.parametrize(
    ("changes", "check", "hint"),
    [
        pytest.param(
            {"finding.layer": "feed_forward_layer"}, "layer", "another layer costs more than", id="second"
        ),
        pytest.param({"finding.layer": "heavylayer"}, "layer", "the spelling of model.py", id="spelling"),
        pytest.param(
            {"finding.kernel": "sgemm_wide"}, "kernel", "launched from elsewhere", id="another-layer"
        ),
        pytest.param(
            {"finding.kernel": "float"}, "kernel", "also matches kernels of other layers", id="too-short"
        ),
        pytest.param(
            {"finding.kernel": "kernel<float>_backward"}, "kernel", "takes far more", id="minor-kernel"
        ),
        pytest.param(
            {"finding.kernel": "volta_fp16_gemm"}, "kernel", "no kernel of this recording", id="invented"
        ),
        pytest.param({"finding.line": 85}, "line", "executing line", id="near"),
        pytest.param({"finding.line": 0}, "line", "not answered yet", id="unanswered"),
        pytest.param({"finding.share": 35.9}, "share", "only the forward part", id="forward-alone"),
        pytest.param({"finding.share": 0.448}, "share", "per cent", id="fraction"),
        pytest.param({"finding.share": 60}, "share", "sum all its lines", id="too-much"),
    ],
)
def test_wrong_answers_get_a_hint(copy: Path, changes: dict[str, object], check: str, hint: str) -> None:
    training_trace(copy / "run.sqlite")
    found = graded(copy, finding("slow") | changes)[check]
    assert found.status is CheckStatus.FAILED and hint in found.message


@pytest.mark.parametrize(
    "given", ["HeavyLayer.forward", "HeavyLayer.forward()", "model.HeavyLayer", "model.py:HeavyLayer"]
)
def test_other_ways_to_write_the_layer(copy: Path, given: str) -> None:
    training_trace(copy / "run.sqlite")
    assert graded(copy, finding("slow") | {"finding.layer": given})["layer"].status is CheckStatus.PASSED


def test_kernel_may_be_given_as_the_table_shows_it(copy: Path) -> None:
    training_trace(copy / "run.sqlite")
    found = bottleneck.find(Trace.open(copy / "run.sqlite"))
    shown = bottleneck.shown_name(found.kernels[0], width=20)
    assert "..." in shown
    assert graded(copy, finding("slow") | {"finding.kernel": shown})["kernel"].status is CheckStatus.PASSED


@pytest.mark.parametrize("culprit", ["fast"])
def test_recording_of_the_repaired_program_is_refused(copy: Path, culprit: str) -> None:
    training_trace(copy / "run.sqlite", culprit)
    checks = graded(copy, finding("slow"))
    assert (
        checks["recording"].status is CheckStatus.FAILED
        and "does not show the problem" in checks["recording"].message
    )
    assert checks["layer"].status is CheckStatus.NOT_CHECKED
    assert "HeavyLayer" not in checks["recording"].message


def test_recording_that_is_missing_or_not_a_trace(copy: Path) -> None:
    assert "no such file" in graded(copy, finding("slow"))["recording"].message
    (copy / "run.sqlite").write_text("not a database")
    assert graded(copy, finding("slow"))["recording"].status is CheckStatus.FAILED


def test_nsys_recording_knows_no_classes_and_is_graded_all_the_same(copy: Path) -> None:
    """nsys writes "forward" for every class: the source tells whose it is, the starter's even when the
    copy was edited.
    """
    training_trace(copy / "run.sqlite", form="nsys")
    (copy / "model.py").write_text("# a line more\n" * 40 + (copy / "model.py").read_text())
    checks = graded(copy, finding("slow") | {"finding.share": 35.9})
    for name in ("recording", "layer", "kernel", "line", "share"):
        assert checks[name].status is CheckStatus.PASSED, checks[name]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(f'return heavy_layer({INPUTS}, implementation="fast")', id="the-op"),
        pytest.param("return torch.tanh(x @ (self.w1 @ self.w2 @ self.w3) + self.bias)", id="folded-by-hand"),
        pytest.param("return torch.tanh(x @ self.w1 @ self.w2 @ self.w3 + self.bias)", id="batched"),
    ],
)
def test_true_repairs_pass(copy: Path, body: str) -> None:
    result = repaired(copy, body)[0]
    assert (result.name, result.status) == ("result", CheckStatus.PASSED), result


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        pytest.param(
            "return torch.tanh(x @ self.w1 + self.bias)",
            "gradient of heavy.w2 is missing|differs by",
            id="matrices-dropped",
        ),
        pytest.param(
            "h = x.bfloat16() @ (self.w1 @ self.w2 @ self.w3).bfloat16()\n"
            "        return torch.tanh(h.float() + self.bias)",
            "differs by",
            id="half-precision",
        ),
        pytest.param(
            "return torch.tanh(x @ self.w1 @ self.w2 @ self.w3).detach() + self.bias * 0",
            "missing|differs by",
            id="no-gradient",
        ),
        pytest.param("return x * float('nan')", "missing|differs by", id="not-a-number"),
        pytest.param("return torch.tanh(x @ self.weights)", "AttributeError", id="raises"),
        pytest.param("return x[:, :1]  # too small, and broadcasts", "missing|differs by", id="wrong-shape"),
    ],
)
def test_what_is_no_repair_is_refused(copy: Path, body: str, hint: str) -> None:
    checks = repaired(copy, body)
    assert checks[0].status is CheckStatus.FAILED and re.search(hint, checks[0].message), checks[0]
    assert all(check.status is CheckStatus.NOT_CHECKED for check in checks[1:])


def test_renamed_parameters_are_refused(copy: Path) -> None:
    text = (copy / "model.py").read_text()
    (copy / "model.py").write_text(text.replace("self.w3", "self.w4"))
    checks = repair.checks(copy, Answers({}))
    assert checks[0].status is CheckStatus.FAILED and "keep their names" in checks[0].message


def test_solution_changes_nothing_but_the_heavy_layer() -> None:
    def without(text: str) -> str:
        return re.sub(r"class HeavyLayer.*?(?=\n\n\nclass )", "", text, flags=re.S)

    starter, solved = ((FOLDER / where / "model.py").read_text() for where in (".", "solutions"))
    assert starter != solved and without(starter) == without(solved)


def test_where_the_gpu_is_missing_speed_is_not_checked_and_says_why(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profiling_lab.exercises.exercise import Need

    monkeypatch.setattr(Need, "missing", lambda self: "no NVIDIA GPU was found")
    checks = repaired(copy, "return torch.tanh(x @ self.w1 @ self.w2 @ self.w3 + self.bias)")
    assert [check.status for check in checks[1:]] == [CheckStatus.NOT_CHECKED, CheckStatus.NOT_CHECKED]
    assert all("no NVIDIA GPU" in check.message for check in checks[1:])


@pytest.mark.gpu
def test_speed_and_claim_are_measured(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured once: a second measurement of a GPU in use may differ by more than a claim may."""
    timings: list[dict[str, Timing]] = []

    def once(steps: Mapping[str, Callable[[], object]]) -> dict[str, Timing]:
        timings.extend([] if timings else [interleaved(steps)])
        return timings[0]

    monkeypatch.setattr(repair, "interleaved", once)
    body = FORWARD.strip().replace("self.implementation", '"fast"')
    checks = {check.name: check for check in repaired(copy, body)}
    assert checks["speed"].status is CheckStatus.PASSED, checks["speed"]
    gain = float(checks["speed"].message.rpartition(": ")[2].split()[0])
    honest = {
        check.name: check for check in repair.checks(copy, Answers({"heavy": "slow", "fix.speedup": gain}))
    }
    boast = {
        check.name: check
        for check in repair.checks(copy, Answers({"heavy": "slow", "fix.speedup": 10 * gain}))
    }
    assert honest["claim"].status is CheckStatus.PASSED and boast["claim"].status is CheckStatus.FAILED


# analyze_results.py and the scripts, run as a learner runs them


def analyzed(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "analyze_results.py", *arguments], cwd=copy, capture_output=True, text=True
    )


def test_analysis_prints_the_expected_block(copy: Path) -> None:
    training_trace(copy / "run.sqlite")
    done = analyzed(copy, "run.sqlite")
    forward, step = line_of("model.py", FORWARD.strip()), line_of("train_model.py", "output = model(data)")
    assert done.returncode == 0, done.stderr
    text = done.stdout.splitlines()
    assert text[0] == "Top CUDA Kernels by Time:"
    assert re.fullmatch(r"1\. heavy_layer_slow_kernel \(35\.9 % of GPU time; 2 launches, .* each\)", text[1])
    assert text[2] == f"   └── Python: model.py:HeavyLayer.forward() line {forward}"
    assert f"train_model.py:training_step() line {step}" in done.stdout
    assert text[-1].startswith("Conclusion: HeavyLayer is the bottleneck: 44.8 % of GPU time")


def test_analysis_of_many_tiny_kernels_adds_up_by_line(copy: Path) -> None:
    training_trace(copy / "run.sqlite", "loop")
    assert "Conclusion: HeavyLayer is the bottleneck" in analyzed(copy, "run.sqlite").stdout


def test_analysis_names_another_layer_when_another_costs_most(copy: Path) -> None:
    training_trace(copy / "run.sqlite", "fast")
    assert "Conclusion: feed_forward_layer" in analyzed(copy, "run.sqlite").stdout


def test_analysis_can_show_fewer_frames(copy: Path) -> None:
    training_trace(copy / "run.sqlite")
    assert "training_step" in analyzed(copy, "run.sqlite").stdout
    assert "training_step" not in analyzed(copy, "run.sqlite", "--max-depth", "2").stdout
    assert "model.py:HeavyLayer" not in analyzed(copy, "run.sqlite", "--module", "train_model.py").stdout


def test_analysis_of_a_file_that_is_not_a_trace_is_one_sentence(copy: Path) -> None:
    done = analyzed(copy, "README.md")
    assert (
        done.returncode == 4
        and done.stderr.startswith("analyze_results.py: README.md is not a trace")
        and not done.stdout
    )


@pytest.mark.parametrize("script", ["profile_basic.sh", "profile_python.sh"])
def test_scripts_refuse_without_nsys(copy: Path, script: str) -> None:
    done = subprocess.run(
        [f"./{script}"], cwd=copy, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 2
    assert "nsys" in done.stderr and "profiling-lab record" in done.stderr and not done.stdout


@pytest.mark.parametrize(
    ("script", "report", "flags"),
    [
        ("profile_basic.sh", "basic_profile", {"--trace=cuda,nvtx", "--force-overwrite=true"}),
        (
            "profile_python.sh",
            "python_profile",
            {
                "--python-backtrace=cuda",
                "--cudabacktrace=all:0",
                "--sample=process-tree",
                "--include-json=true",
            },
        ),
    ],
)
def test_scripts_give_nsys_the_flags_that_record(
    copy: Path, tmp_path: Path, script: str, report: str, flags: set[str]
) -> None:
    """A stand-in for nsys notes how it was called and runs the program, as the real one does."""
    nsys = tmp_path / "bin" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text('#!/bin/sh\necho "$@" >> "$NSYS_LOG"\n')
    nsys.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{nsys.parent}:{os.environ['PATH']}",
        "NSYS_LOG": str(tmp_path / "log"),
    }
    done = subprocess.run(
        [f"./{script}", "--heavy", "loop"], cwd=copy, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "log").read_text().splitlines()
    assert flags <= {flag for call in calls for flag in call.split()}
    assert calls[0].startswith("profile ") and calls[0].endswith("-u train_model.py --epochs 2 --heavy loop")
    assert f"-o {report}" in calls[0] and f"{report}.nsys-rep" in calls[1]


def test_readme_commands_run(copy: Path) -> None:
    """Those that need neither a GPU nor nsys, as they stand in the text."""
    recorded = copy / "recorded" / "demo_h200.sqlite"
    recorded.unlink(missing_ok=True)
    training_trace(recorded)
    text = (copy / "README.md").read_text()
    commands = [
        line.split("#")[0].strip()
        for line in text.splitlines()
        if re.match(r"    (profiling-lab|python) ", line)
    ]
    runnable = [command for command in commands if "recorded/" in command or "exercise check" in command]
    assert len(runnable) >= 5
    for command in runnable:
        program, *arguments = command.split()
        prefix = [sys.executable, "-m", "profiling_lab"] if program == "profiling-lab" else [sys.executable]
        done = subprocess.run([*prefix, *arguments], cwd=copy, capture_output=True, text=True)
        assert done.returncode == (1 if "check" in command else 0), f"{command}: {done.stderr}"
        assert done.stdout


def test_readme_links_and_files_exist(copy: Path) -> None:
    text = (copy / "README.md").read_text()
    for name in re.findall(r"^\| `([^`]+)` \|", text, re.M):
        assert (copy / name).exists() or name.startswith("recorded/"), name
    assert shutil.which("bash"), "the scripts of this exercise need bash"


def test_worked_answer_is_what_its_script_writes() -> None:
    """No number in it is written by hand: regenerate with solutions/write_notes.py."""
    solutions = FOLDER / "solutions"
    script = repair.load(solutions / "write_notes.py", "write_notes")
    results = REPO / "benchmarks" / "results" / "heavy_layer_step.jsonl"
    times = script.step_times(results if results.is_file() else None)
    with Trace.open(script.RECORDED) as trace:
        found = bottleneck.find(trace, sources=FOLDER)
    assert (solutions / "analysis_notes.md").read_text() == script.notes(found, times, "NVIDIA H200")
    assert (solutions / "answer.toml").read_text() == script.answer(found, times)


@pytest.mark.parametrize("name", ["demo_h200.sqlite", "nsys_h200.sqlite"])
def test_recordings_are_of_the_files_as_they_are(name: str) -> None:
    """Whoever edits the model or the script must record again: benchmarks/record_demo.py."""
    with Trace.open(FOLDER / "recorded" / name) as trace:
        frames = {f for f in trace.stacks.frames if f.file in ("model.py", "train_model.py")}
    assert {frame.file for frame in frames} == {"model.py", "train_model.py"}
    for frame in frames:
        bare = frame.function.rpartition(".")[2]
        found = qualified(bare, frame.file, frame.line, FOLDER)
        assert found.endswith(frame.function) and found != "forward", frame
    launch = line_of("model.py", FORWARD.strip())
    assert any(frame.line == launch and frame.file == "model.py" for frame in frames)
