# SPDX-License-Identifier: Apache-2.0
"""Grade E12. The right answers are computed from the learner's own samples."""

from __future__ import annotations

from pathlib import Path

from profiling_lab.errors import LabError
from profiling_lab.exercises import ncu_questions
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.e12_power_measurement.samples import SampleFacts, sample_facts
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed
from profiling_lab.exercises.ncu_questions import Name, Number

ENTRY = entry("power-measurement")
PROGRAM, REPAIRED = "step_load.py", "measure.py"
RECORDED = "recorded/samples_h200.csv"
REASONS = ("the past", "too few samples", "other processes", "idle power")
LEAST_LAG_MS = 60.0
"""twice a burst: a sensor that is slower than this shows the time before the burst"""


def why(facts: SampleFacts) -> tuple[str, ...]:
    return ("the past",) if facts.rise_ms >= LEAST_LAG_MS else REASONS


QUESTIONS = (
    Number("finding.period_ms", lambda facts: facts.period_ms,
           "the time between two changes of energy_mj, in ms", slack_frac=0.05, slack=5.0),
    Number("finding.rise_ms", lambda facts: facts.rise_ms,
           "from the first sample of a load until power_w has risen by 90 % of the step, in ms",
           slack_frac=0.15, slack=40.0),
    Number("finding.load_w", lambda facts: facts.load_w,
           "joules by seconds between two changes of the counter, 0.3 s or later in a load"),
    Number("finding.shown_w", lambda facts: facts.shown_w, "the highest power_w in the phase bursts"),
    Number("finding.burst_j", lambda facts: facts.burst_j,
           "joules of the counter around the bursts, less idle power by that time, by the number of bursts",
           slack_frac=0.1),
    Name("finding.why", why, "what does power_w show in a burst of 30 ms? See rise_ms", choices=REASONS),
)  # fmt: skip


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "recording", one for each question, and "explanation"."""
    name = answers.text("trace")
    path = workspace / name if name else ENTRY.folder / RECORDED
    try:
        facts = sample_facts(path)
    except LabError as error:
        reason = "there are no usable samples to check it against"
        return [
            failed("recording", str(error)),
            *(not_checked(each.key, reason) for each in QUESTIONS),
            explanation(answers),
        ]
    recorded = ENTRY.folder / RECORDED
    is_ours = recorded.is_file() and recorded.read_bytes() == path.read_bytes()
    return [
        passed("recording", "the one that came with the exercise" if is_ours else "your own"),
        *(ncu_questions.graded(each, facts, answers) for each in QUESTIONS),
        explanation(answers),
    ]


def repair(workspace: Path, _: Answers) -> list[GradedCheck]:
    """The checks "result", "joules" and "error_j"."""
    from profiling_lab.exercises.e12_power_measurement import repair as judge

    return judge.checks(ENTRY.folder / REPAIRED, workspace / REPAIRED)


EXERCISE = Exercise(
    entry=ENTRY,
    question="What do the power sensor and the energy counter show, and how many joules does a kernel take?",
    starter=("README.md", PROGRAM, REPAIRED, "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=(PROGRAM,),
    recording=RECORDED,
    mistakes=(
        Mistake("the time between two samples", {"finding.period_ms": 4.0}, "finding.period_ms"),
        Mistake("seconds", {"finding.period_ms": 0.1}, "finding.period_ms"),
        Mistake("the period of the counter", {"finding.rise_ms": 100.0}, "finding.rise_ms"),
        Mistake("power_w on the average of a load", {"finding.load_w": 509.0}, "finding.load_w"),
        Mistake("idle power", {"finding.shown_w": 127.0}, "finding.shown_w"),
        Mistake("highest power_w by the time of a burst", {"finding.burst_j": 6.5}, "finding.burst_j"),
        Mistake("joules of all bursts", {"finding.burst_j": 200.0}, "finding.burst_j"),
        Mistake("more samples would help", {"finding.why": "too few samples"}, "finding.why"),
        Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
    ),
    writes="samples.csv",
    look="python measure.py",
)
