# SPDX-License-Identifier: Apache-2.0
"""Grade E17. The right answers are computed from the learner's own recording.

The planted layer is known to the grader only to notice a recording of something else.
"""

from __future__ import annotations

from pathlib import Path, PurePath

from profiling_lab.analysis.bottleneck import Bottleneck, Layer
from profiling_lab.analysis.kernels.kernels import KernelRow
from profiling_lab.errors import LabError
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import (
    Exercise,
    GradedCheck,
    Mistake,
    failed,
    not_checked,
    passed,
)
from profiling_lab.report import bottleneck, numbers
from profiling_lab.trace import Trace

FOLDER = Path(__file__).parent
RECORDED = FOLDER / "recorded" / "demo_h200.sqlite"
PLANTED = "HeavyLayer"
SHARE_TOLERANCE = 5.0  # percentage points of all GPU time; repeated recordings differ by less
ALSO_RIGHT_FRAC = 0.5  # another kernel or line with at least this share of the largest one is right too
NEAR_LINES = 8


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """Grade the findings, in the order of the steps. Without a usable recording they are not checked."""
    recording, found = _recording(workspace, answers)
    if found is None:
        reason = "there is no usable recording to check it against"
        checks = [not_checked(name, reason) for name in ("layer", "kernel", "line", "share", "helps")]
    else:
        truth = found.layers[0]
        checks = [
            _layer(answers, found, truth),
            _kernel(answers, found, truth),
            _line(answers, truth),
            _share(answers, truth),
            _helps(answers, found),
        ]
    return [recording, *checks, _explanation(answers)]


def repair(workspace: Path, answers: Answers) -> list[GradedCheck]:
    from profiling_lab.exercises.e17_python_backtrace import repair  # imports torch: only for grading

    return repair.checks(workspace, answers)


def _recording(workspace: Path, answers: Answers) -> tuple[GradedCheck, Bottleneck | None]:
    given = answers.text("trace")
    try:
        with Trace.open(workspace / given if given else RECORDED) as trace:
            found = bottleneck.find(trace, sources=FOLDER)
    except LabError as error:
        return failed("recording", f"{error}. Step 2 of README.md makes one"), None
    if not (found.is_clear or found.is_covered):
        return failed(
            "recording", f"{bottleneck.conclusion(found)} Step 2 of README.md makes a better one"
        ), None
    if found.layers[0].name != PLANTED:
        why = "this recording does not show the problem: was it made after the repair, or with --heavy fast?"
        return failed(
            "recording", f"{why} Record the unchanged folder with --heavy slow or --heavy loop"
        ), None
    whose = "your own" if given else "the one that came with the exercise"
    share = numbers.share(found.coverage.attributed_frac)
    return passed("recording", f"{whose}; {share} of its GPU time has a Python line"), found


def _layer(answers: Answers, found: Bottleneck, truth: Layer) -> GradedCheck:
    given = answers.text("finding.layer")
    if given is None:
        return _unanswered("layer", "`profiling-lab lines FILE --by function` ranks the candidates")
    name = given.removesuffix("()").removesuffix(".forward").rpartition(":")[2].removeprefix("model.")
    if name == truth.name:
        return passed("layer", f"{name} is the most expensive")
    if name not in {layer.name for layer in found.layers}:
        return failed(
            "layer", f"nothing called {given!r} launches a kernel here; use the spelling of model.py"
        )
    return failed(
        "layer", f"another layer costs more than {given} if all its kernels are summed, including backward"
    )


def _kernel(answers: Answers, found: Bottleneck, truth: Layer) -> GradedCheck:
    given = answers.text("finding.kernel")
    if given is None:
        return _unanswered("kernel", "`profiling-lab kernels FILE` shows what launched each")
    own_ns = found.kernels_of(truth.name)
    costly = {name for name, ns in own_ns.items() if ns >= ALSO_RIGHT_FRAC * max(own_ns.values())}
    matches = [row for row in found.kernels if _is_named(given, row)]
    # A kernel without a Python stack (nsys has none for backward) is not attributed and does not count.
    elsewhere = [row for row in matches if row.name not in own_ns and row.stacks and row.stacks[0].frames]
    if not matches:
        return failed("kernel", f"no kernel of this recording has {given!r} in its name")
    if not any(row.name in own_ns for row in matches):
        return failed(
            "kernel", "it is launched from elsewhere: read the stack below it, innermost frame first"
        )
    if elsewhere:
        return failed("kernel", f"{given!r} also matches kernels of other layers; write more of the name")
    if not any(row.name in costly for row in matches):
        return failed("kernel", "the layer launches it, but another kernel of the layer takes far more time")
    return passed("kernel", "the most expensive kernel of the most expensive layer")


def _is_named(given: str, row: KernelRow) -> bool:
    """Whether `given` is a part of the name, or the name as a table shows it, with its middle omitted."""
    return any(
        all(part in name for part in given.split("...")) for name in (row.name, bottleneck.shown_name(row))
    )


def _line(answers: Answers, truth: Layer) -> GradedCheck:
    file, line = answers.text("finding.file"), answers.integer("finding.line")
    if file is None or line is None:
        return _unanswered("line", "the innermost frame of your own code below the kernel")
    enough_ns = ALSO_RIGHT_FRAC * truth.rows[0].gpu_ns
    right = {(PurePath(row.file).name, row.line) for row in truth.rows if row.gpu_ns >= enough_ns}
    if (PurePath(file).name, line) in right:
        return passed("line", f"{PurePath(file).name} line {line} launches it")
    if PurePath(file).name not in {name for name, _ in right}:
        return failed("line", f"{file} is not where the kernel's innermost frame of your own code is")
    if any(abs(line - other) <= NEAR_LINES for _, other in right):
        return failed(
            "line", "close, but the stack shows the executing line, not the `def` or `class` above it"
        )
    return failed("line", "another line launches it; this one may be a caller, further out in the stack")


def _share(answers: Answers, truth: Layer) -> GradedCheck:
    given = answers.number("finding.share")
    if given is None:
        return _unanswered("share", "as a percentage of all GPU time")
    actual = 100 * truth.share_frac
    if abs(given - actual) <= SHARE_TOLERANCE:
        return passed("share", f"{given:.1f} %, recomputed {actual:.1f} %")
    if abs(given - actual * truth.forward_ns / truth.gpu_ns) <= SHARE_TOLERANCE:
        return failed("share", "that is only the forward part; add the layer's backward kernels")
    if abs(100 * given - actual) <= SHARE_TOLERANCE:
        return failed("share", "write the value in per cent, not as a fraction")
    return failed("share", "not its share of all GPU time; sum all its lines, forward and backward")


def _helps(answers: Answers, found: Bottleneck) -> GradedCheck:
    """Why backtraces help: the name of such a kernel does not say which line it belongs to."""
    given, count = answers.text("helps.name"), answers.integer("helps.lines")
    lines = {row.name: lines_of(row) for row in found.kernels}
    if not any(len(each) > 1 for each in lines.values()):
        return not_checked(
            "helps", "no kernel of this recording has stacks of two lines: nsys has none of backward"
        )
    if given is None or count is None:
        return _unanswered(
            "helps", "`profiling-lab kernels FILE --stacks 0` shows every line that launches a kernel"
        )
    matches = {given} & lines.keys() or {row.name for row in found.kernels if _is_named(given, row)}
    if len(matches) != 1:
        what = (
            "is in the names of several kernels; write more of one" if matches else "is in no kernel's name"
        )
        return failed("helps", f"{given!r} {what}")
    right = len(lines[matches.pop()])
    if right < 2:
        return failed("helps", "its lines are not several: for this kernel the name would do")
    if count != right:
        return failed("helps", f"not {count} lines: count each line once, whatever its phase")
    return passed("helps", f"{right} lines launch it: a list of kernels names none of them")


def lines_of(row: KernelRow) -> set[tuple[str, int]]:
    """The innermost lines of the exercise's files in the stacks of a kernel."""
    files = {path.name for path in FOLDER.glob("*.py")}
    own = ([f for f in stack.frames if PurePath(f.file).name in files] for stack in row.stacks)
    return {(PurePath(frames[0].file).name, frames[0].line) for frames in own if frames}


def _explanation(answers: Answers) -> GradedCheck:
    missing = [key for key in ("cause", "change") if answers.text(f"fix.{key}") is None]
    if missing:
        return _unanswered("explanation", f"[fix] {' and '.join(missing)} in your own words")
    return passed("explanation", "cause and change are written down; this check does not judge their content")


def _unanswered(name: str, hint: str) -> GradedCheck:
    return failed(name, f"not answered yet: {hint}")


def _line_of(text: str) -> int:
    """The first line of the model with that text."""
    lines = (FOLDER / "model.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


EXERCISE = Exercise(
    entry=entry("python-backtrace"),
    question="Which Python line launched the most expensive kernel?",
    starter=(
        "README.md",
        "train_model.py",
        "model.py",
        "profile_basic.sh",
        "profile_python.sh",
        "analyze_results.py",
        "answer.toml",
        "recorded",
    ),
    findings=findings,
    repair=repair,
    program=("train_model.py", "--epochs", "2"),
    recording="recorded/demo_h200.sqlite",
    rules=("dominant_line", "dominant_kernel", "tiny_kernels"),
    mistakes=(
        Mistake(
            "the layer with the most kernels of well-known names",
            {"finding.layer": "attention_layer"},
            "layer",
        ),
        Mistake("the caller instead of the layer", {"finding.layer": "training_step"}, "layer"),
        Mistake("a name that does not exist", {"finding.layer": "SlowLayer"}, "layer"),
        Mistake("a kernel of one line", {"helps.name": "heavy_layer_slow_kernel", "helps.lines": 1}, "helps"),
        Mistake("stacks counted, or callers", {"helps.lines": 7}, "helps"),
        Mistake("a name that many kernels share", {"helps.name": "gemm"}, "helps"),
        Mistake("an invented kernel", {"finding.kernel": "ampere_sgemm_128x64_tn"}, "kernel"),
        Mistake("a letter that every kernel name contains", {"finding.kernel": "e"}, "kernel"),
        Mistake(
            "where the layer is defined, not where it launches",
            {"finding.line": _line_of(f"class {PLANTED}")},
            "line",
        ),
        Mistake("the line that calls the layer", {"finding.line": _line_of("self.heavy(x)")}, "line"),
        Mistake("the right line of the wrong file", {"finding.file": "train_model.py"}, "line"),
        Mistake("everything", {"finding.share": 100.0}, "share"),
        Mistake("a fraction instead of a percentage", {"finding.share": 0.45}, "share"),
        Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
    ),
)
