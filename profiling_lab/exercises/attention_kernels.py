# SPDX-License-Identifier: Apache-2.0
"""Exercises about CUDA kernels of attention (E33 to E35): the learner reads a recording and a report of ncu,
then repairs the source.

The right answers are computed from the learner's own files. The planted kernels are known here only to notice
files of something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.analysis.kernels.kernels import KernelRow, top_kernels
from profiling_lab.analysis.ncu.consistency import contradictions
from profiling_lab.analysis.ncu.report import Launch, Report, ReportError, function_name, read
from profiling_lab.errors import LabError
from profiling_lab.exercises import kernel_repair
from profiling_lab.exercises.answers import Answers, is_near
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.entries import Entry, entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed
from profiling_lab.trace import Trace

SOURCE = "attention.cu"
TRACE, REPORT = "recorded/starter_h200.sqlite", "recorded/starter_h200.csv"
NEAR_LINES = 8
CAUSES = (
    "uncoalesced loads",
    "low occupancy",
    "too few blocks",
    "serialised atomics",
    "allocation in the kernel",
    "bank conflicts",
    "divergent branches",
    "register spills",
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number that the learner reads from the report."""

    key: str
    what: str
    read: Callable[[Launch], float]
    slack: float = 0.0
    """accepted difference, in the unit of the answer"""
    slack_frac: float = 0.02
    """the same as a fraction of the true value"""

    def fits(self, given: float, truth: float) -> bool:
        return is_near(given, truth, self.slack, self.slack_frac)


@dataclass(frozen=True, slots=True)
class Part:
    """One planted kernel, and what the learner says about it in a table of answer.toml."""

    section: str
    kernel: str
    cause: str
    lines: tuple[str, ...]
    """texts of the lines of attention.cu that are right"""
    numbers: tuple[Number, ...]
    shows: Callable[[Launch], bool]
    """whether this launch has the problem: that of a repaired kernel has not"""


def metric(name: str) -> Callable[[Launch], float]:
    return lambda launch: launch.value(name)


@dataclass(frozen=True, slots=True)
class Files:
    """The learner's recording and report, after they were found usable."""

    rows: tuple[KernelRow, ...]
    report: Report

    def row(self, part: Part) -> KernelRow:
        return next(row for row in self.rows if function_name(row.name) == part.kernel)

    def share_pct(self, part: Part) -> float:
        """Of the time of all kernels and copies, as `profiling-lab kernels` shows it."""
        return 100 * self.row(part).share_frac


def usable(parts: tuple[Part, ...], trace: Path, report: Path) -> Files | tuple[str, str]:
    """The files; or the check that fails and why."""
    needs = [part.kernel for part in parts]
    try:
        with Trace.open(trace) as opened:
            rows = top_kernels(opened, shapes=True, lines=False).rows
    except LabError as error:
        return "recording", f"{error}. `profiling-lab exercise profile` makes a new recording"
    named = {function_name(row.name): row for row in rows}
    other = (
        "does not show the problem: was it made after the repair, or with another program? "
        "Use the unchanged program"
    )
    if any(name not in named for name in needs) or function_name(rows[0].name) not in needs:
        return "recording", f"this recording {other}"
    try:
        found = read(report)
        wrong = contradictions(found, functions=needs)
        if wrong:
            return "report", f"{wrong[0]}. `make report` makes a new report"
        for part in parts:
            launch, shape = found.last(part.kernel), named[part.kernel].shape
            if not part.shows(launch):
                return "report", f"this report {other}"
            if shape and (launch.grid, launch.block) != (shape.usual.grid, shape.usual.block):
                return "report", f"{part.kernel} has another grid or block here than in the recording"
            for number in part.numbers:
                number.read(launch)
    except ReportError as error:
        return "report", f"{error}"
    return Files(tuple(rows), found)


def findings(parts: tuple[Part, ...], line: Entry, folder: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "recording" and "report", and of each part "kernel", "share", "cause", "line", numbers."""
    paths, whose = [], []
    for key, came_with_it in (("trace", TRACE), ("report", REPORT)):
        given = answers.text(key)
        own = line.folder / came_with_it
        path = folder / given if given else own
        if not given and not path.is_file():
            return [
                failed(
                    "recording" if key == "trace" else "report",
                    f"{answers.source} has no {key} ({key} = ...), and none came with the exercise",
                )
            ]
        paths.append(path)
        whose.append("your own" if given and path.name != own.name else "the one that came with the exercise")
    files = usable(parts, *paths)
    if isinstance(files, tuple):
        name, reason = files
        return [
            failed(name, reason),
            not_checked("finding", f"there is no usable {name} to check it against"),
        ]
    checks = [passed("recording", whose[0]), passed("report", whose[1])]
    for part in parts:
        checks += _of_part(part, line, files, answers, one=len(parts) == 1)
    return [*checks, explanation(answers)]


def _of_part(part: Part, line: Entry, files: Files, answers: Answers, one: bool) -> list[GradedCheck]:
    at = part.section

    def named(check: str) -> str:
        return check if one else f"{at} {check}"

    launch = files.report.last(part.kernel)
    checks = [
        _kernel(named("kernel"), part, files, answers.text(f"{at}.kernel")),
        _size(
            named("share"),
            Number(
                "share",
                "share of all GPU time in per cent, as `profiling-lab kernels` shows it",
                metric(""),
                2.0,
            ),
            answers.number(f"{at}.share"),
            files.share_pct(part),
        ),
        _cause(named("cause"), part, answers.text(f"{at}.cause")),
        _line(named("line"), part, line.folder / SOURCE, answers.integer(f"{at}.line")),
    ]
    for number in part.numbers:
        given = answers.number(f"{at}.{number.key}")
        checks.append(_size(named(number.key), number, given, number.read(launch)))
    return checks


def _kernel(name: str, part: Part, files: Files, given: str | None) -> GradedCheck:
    if given is None:
        return failed(name, "not answered yet: the name of the kernel, from the recording")
    if function_name(given) == part.kernel:
        return passed(name, part.kernel)
    if any(function_name(row.name) == function_name(given) for row in files.rows):
        return failed(name, "this kernel is in the recording, but it is not the one that is asked for")
    return failed(name, f"no kernel of the recording is called {given!r}")


def _cause(name: str, part: Part, given: str | None) -> GradedCheck:
    if given is None:
        return failed(name, "not answered yet: one of the causes of README.md")
    if given.strip().lower() not in CAUSES:
        return failed(name, f"{given!r} is not one of the causes of README.md")
    if given.strip().lower() != part.cause:
        return failed(name, "the numbers of this kernel say something else: compare them with README.md")
    return passed(name, given)


def right_lines(part: Part, source: Path) -> list[int]:
    """The lines of the exercise's own source that cause it."""
    lines = source.read_text(encoding="utf-8").splitlines()
    return [number for each in part.lines for number, text in enumerate(lines, 1) if each in text]


def _line(name: str, part: Part, source: Path, given: int | None) -> GradedCheck:
    right = right_lines(part, source)
    if given is None:
        return failed(name, f"not answered yet: the line of {source.name}")
    if given in right:
        return passed(name, f"{source.name} line {given}")
    if any(abs(given - each) <= NEAR_LINES for each in right):
        return failed(name, "close, but another statement causes it")
    return failed(name, "another line causes it")


def _size(name: str, number: Number, given: float | None, truth: float) -> GradedCheck:
    if given is None:
        return failed(name, f"not answered yet: {number.what}")
    if number.fits(given, truth):
        return passed(name, f"{given:g}, recomputed {truth:.4g}")
    if number.fits(100 * given, truth):
        return failed(name, "write the value in per cent, not as a fraction")
    return failed(name, f"your files have another value: {number.what}")


def right_answers(parts: tuple[Part, ...], source: Path, files: Files) -> dict[str, object]:
    """The right answers for all parts."""
    found: dict[str, object] = {}
    for part in parts:
        launch = files.report.last(part.kernel)
        found |= {
            f"{part.section}.kernel": part.kernel,
            f"{part.section}.share": round(files.share_pct(part), 1),
            f"{part.section}.cause": part.cause,
            f"{part.section}.line": right_lines(part, source)[0],
        }
        found |= {f"{part.section}.{n.key}": float(f"{n.read(launch):.6g}") for n in part.numbers}
    return found


@dataclass(frozen=True, slots=True)
class KernelExercise(Exercise):
    """An exercise whose planted parts the recording script also needs."""

    parts: tuple[Part, ...] = ()
    """one of them takes most of the time"""


def exercise(
    name: str,
    question: str,
    parts: tuple[Part, ...],
    tasks: str,
    mistakes: tuple[Mistake, ...],
    rules: tuple[str, ...],
) -> KernelExercise:
    """tasks: the module that has the TASKS of its repair. rules: those of `check --ncu` that find it."""
    line = entry(name)

    def judge_findings(folder: Path, given: Answers) -> list[GradedCheck]:
        return findings(parts, line, folder, given)

    def judge_repair(folder: Path, _: Answers) -> list[GradedCheck]:
        return kernel_repair.checks(line.folder / SOURCE, folder / SOURCE, tasks)

    return KernelExercise(
        entry=line,
        question=question,
        starter=("README.md", SOURCE, "Makefile", "run.py", "answer.toml", "recorded"),
        findings=judge_findings,
        repair=judge_repair,
        program=("run.py",),
        recording=TRACE,
        rules=rules,
        mistakes=(Mistake("no cause written down", {"fix.cause": ""}, "explanation"), *mistakes),
        parts=parts,
        look="kernels",
    )
