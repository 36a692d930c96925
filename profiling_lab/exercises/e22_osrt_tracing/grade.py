# SPDX-License-Identifier: Apache-2.0
"""Grade E22. The right answers are computed from the calls in the learner's own recording."""

from __future__ import annotations

from pathlib import Path, PurePath

from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.e22_osrt_tracing import repair
from profiling_lab.exercises.e22_osrt_tracing.calls import NotARecordingError, by_function, read
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed

ENTRY = entry("osrt-tracing")
PROGRAM = "convert.py"
RECORDING = "recorded/starter_cpu.strace.gz"
PLANTED = "os.read("
RECORDS = 2000  # of the program, unless it is told otherwise
LEAST_PER_RECORD = 3
ALSO_RIGHT_FRAC = 0.8
CHECKS = ("often", "often_calls", "per_record", "line", "longest", "longest_share")


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "recording", those of CHECKS, and "explanation"."""
    given = answers.text("trace")
    try:
        rows = by_function(read(workspace / given if given else ENTRY.folder / RECORDING))
    except NotARecordingError as error:
        return _no_recording(f"{error}. `profiling-lab exercise profile` makes a new recording")
    often = max(rows, key=lambda row: row[1])
    if often[1] < LEAST_PER_RECORD * RECORDS:
        return _no_recording(
            "this recording does not show the problem: was it made after the repair, or with another "
            "program? Record the unchanged program"
        )
    return [
        passed("recording", "your own" if given else "the one that came with the exercise"),
        _name(answers, "often", [often[0]], "another function is called more often"),
        _number(answers, "often_calls", often[1], 0.01 * often[1], "calls of the most frequent function"),
        _number(answers, "per_record", often[1] / RECORDS, 0.3, f"its calls for each of {RECORDS:,} records"),
        _line(answers),
        *_longest(answers, rows),
        explanation(answers),
    ]


def _no_recording(why: str) -> list[GradedCheck]:
    reason = "there is no usable recording to check it against"
    return [failed("recording", why), *(not_checked(name, reason) for name in CHECKS)]


def _name(answers: Answers, key: str, right: list[str], wrong: str) -> GradedCheck:
    given = answers.text(f"finding.{key}")
    if given is None:
        return failed(key, f"not answered yet: [finding] {key}, a name of the table")
    return passed(key, given) if given in right else failed(key, wrong)


def _number(answers: Answers, key: str, right: float, slack: float, what: str) -> GradedCheck:
    given = answers.number(f"finding.{key}")
    if given is None:
        return failed(key, f"not answered yet: [finding] {key}, {what}")
    if abs(given - right) <= slack:
        return passed(key, f"{given:g}, recomputed {right:.1f}")
    if abs(100 * given - right) <= slack:
        return failed(key, "write the value in per cent, not as a fraction")
    return failed(key, f"this recording has another value: {what}")


def _line(answers: Answers) -> GradedCheck:
    """Of the exercise's own program: a recording of system calls has no lines of Python."""
    given, file = answers.integer("finding.line"), answers.text("finding.file")
    if given is None or file is None:
        return failed("line", "not answered yet: [finding] file and line that make the most frequent call")
    lines = (ENTRY.folder / PROGRAM).read_text(encoding="utf-8").splitlines()
    right = next(number for number, text in enumerate(lines, 1) if PLANTED in text)
    if PurePath(file).name == PROGRAM and given == right:
        return passed("line", f"{PROGRAM} line {given}")
    return failed("line", "another line makes the most frequent call: who asks the system, and for how much?")


def _longest(answers: Answers, rows: list[tuple[str, int, int]]) -> list[GradedCheck]:
    all_ns = sum(total_ns for _, _, total_ns in rows) or 1
    right = {name: 100 * ns / all_ns for name, _, ns in rows if ns >= ALSO_RIGHT_FRAC * rows[0][2]}
    named = answers.text("finding.longest")
    share = right.get(named or "", right[rows[0][0]])
    return [
        _name(answers, "longest", list(right), "another function takes more time in all of its calls"),
        _number(answers, "longest_share", share, 2.0, "its share of the time in all calls, in per cent"),
    ]


EXERCISE = Exercise(
    entry=ENTRY,
    question="What does the program ask of the system, how often, and what does it wait for?",
    starter=("README.md", PROGRAM, "calls.py", "answer.toml", "recorded"),
    findings=findings,
    repair=lambda workspace, answers: repair.checks(workspace, answers, ENTRY.folder / PROGRAM),
    program=("calls.py",),
    writes="run.trace",
    look="python calls.py",
    recording=RECORDING,
    rules=(),  # they are about the GPU
    mistakes=(
        Mistake(
            "the call with the most time, for the most frequent one", {"finding.often": "fsync"}, "often"
        ),
        Mistake("a function that reads in another way", {"finding.often": "pread64"}, "often"),
        Mistake("calls of another function", {"finding.often_calls": 176}, "often_calls"),
        Mistake("one call for each record", {"finding.per_record": 1.0}, "per_record"),
        Mistake("the line that calls, not the one that asks the system", {"finding.line": 52}, "line"),
        Mistake("the right line of another file", {"finding.file": "calls.py"}, "line"),
        Mistake("the most frequent call, for the longest", {"finding.longest": "read"}, "longest"),
        Mistake("a fraction instead of a percentage", {"finding.longest_share": 0.66}, "longest_share"),
        Mistake("the share of another run", {"finding.longest_share": 31.0}, "longest_share"),
        Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
        Mistake(
            "the recording of the unchanged program as that of the repaired one",
            {"fix.after": RECORDING},
            "after",
        ),
    ),
)
