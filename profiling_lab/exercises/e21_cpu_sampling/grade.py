# SPDX-License-Identifier: Apache-2.0
"""Grade E21. The right answers are computed from the samples in the learner's own recording."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

from profiling_lab.analysis.lines_host import host_lines
from profiling_lab.errors import LabError
from profiling_lab.exercises import clinic, work_repair
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import COMMON_MISTAKES, Defect, Size
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import (
    CheckStatus,
    Exercise,
    GradedCheck,
    Mistake,
    failed,
    not_checked,
    passed,
)
from profiling_lab.exercises.suspects import host_samples
from profiling_lab.exercises.work_repair import Work
from profiling_lab.trace import Trace

ENTRY = entry("cpu-sampling")
PROGRAM = "prepare.py"
DEFECT = Defect(
    host_samples,
    planted=("Sequence.room", "Sequence.room.<locals>.<genexpr>"),
    behind="caller",
    size=Size("share", "the percentage of samples that `profiling-lab lines --host` shows for it", slack=2.0),
    least_frac=0.3,
    recording="recorded/starter_cpu.sqlite",
)
STANDARD_ERRORS = 1.96  # of a 95 % interval
INTERVAL_SLACK_FRAC = 0.25


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    checks = clinic.findings(DEFECT, ENTRY, workspace, answers)
    judged = {check.name: check for check in checks}
    if judged["recording"].status is CheckStatus.PASSED:
        interval = _interval(workspace, answers)
    else:
        interval = not_checked("interval", "there is no usable recording to check it against")
    return [*checks[:-1], interval, judged["explanation"]] if "explanation" in judged else [*checks, interval]


def half_width(share_frac: float, samples: int) -> float:
    """Half of the 95 % interval of a share of this number of samples, in percentage points."""
    return 100 * STANDARD_ERRORS * math.sqrt(share_frac * (1 - share_frac) / samples)


def _interval(workspace: Path, answers: Answers) -> GradedCheck:
    given = answers.number("finding.plus_minus")
    if given is None:
        return failed("interval", "not answered yet: [finding] plus_minus, in percentage points")
    name = answers.text("trace")
    try:
        with Trace.open(workspace / name if name else ENTRY.folder / DEFECT.recording) as trace:
            found = host_lines(trace)
    except LabError as error:
        return not_checked("interval", str(error))
    true = half_width(found.rows[0].share_frac, found.samples)
    if abs(given - true) <= INTERVAL_SLACK_FRAC * true:
        return passed("interval", f"{given:g} percentage points, recomputed {true:.1f}")
    if abs(100 * given - true) <= INTERVAL_SLACK_FRAC * true:
        return failed("interval", "write it in percentage points, not as a fraction")
    return failed(
        "interval",
        "half of the 95 % interval of a share depends on the share and on the number of samples: step 3",
    )


def _data(starter: ModuleType, seed: int, small: bool) -> Any:
    return starter.make_documents(60 if small else 800, seed), starter.make_vocabulary(seed)


def _prepared(program: ModuleType, data: Any) -> Any:
    return program.prepare(*data)


def _difference(old: Any, new: Any) -> str:
    if old == new:
        return ""
    try:
        if len(old) != len(new):
            return f"there are {len(new)} sequences, expected {len(old)}"
        wrong = next(i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
    except TypeError:
        return f"prepare returns {type(new).__name__}, expected a list of sequences"
    return f"sequence {wrong} holds other documents, or in another order"


WORK = Work(_data, _prepared, _difference, at_most_frac=0.5, what="800 documents")


def repair(workspace: Path, _: Answers) -> list[GradedCheck]:
    return work_repair.checks(ENTRY.folder / PROGRAM, workspace / PROGRAM, WORK)


EXERCISE = Exercise(
    entry=ENTRY,
    question="Which line does the host spend its time in, and who calls it?",
    starter=("README.md", PROGRAM, "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=(PROGRAM,),
    recording=DEFECT.recording,
    rules=(),  # they are about the GPU
    mistakes=(
        *COMMON_MISTAKES,
        Mistake("the line that calls, which has the time only with its calls", {"finding.line": 79}, "line"),
        Mistake("a line of the tokenizer, which looks expensive", {"finding.line": 47}, "line"),
        Mistake("a caller that asks less often", {"finding.behind": "Packer.start"}, "behind"),
        Mistake("a fraction instead of a percentage", {"finding.size": 0.55}, "size"),
        Mistake("an interval of a tenth of the number of samples", {"finding.plus_minus": 0.2}, "interval"),
        Mistake("an interval as a fraction", {"finding.plus_minus": 0.019}, "interval"),
    ),
    record_options=("--sample-python",),
    look="lines --host",
)
