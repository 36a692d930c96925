# SPDX-License-Identifier: Apache-2.0
"""Grade E13. The right answers are computed from the learner's own readings."""

from __future__ import annotations

from pathlib import Path

from profiling_lab.errors import LabError
from profiling_lab.exercises import ncu_questions
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.e13_energy_efficiency.samples import EAGER, FUSED, MATMULS, Readings, read
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed
from profiling_lab.exercises.ncu_questions import Name, Number

ENTRY = entry("energy-efficiency")
PROGRAM, REPAIRED = "readings.py", "energy_benchmark.py"
RECORDED = "recorded/readings_h200.json"


def race(found: Readings) -> tuple[str, ...]:
    return ("race",) if found.race_j < found.workloads["fp32"].joules else ("slow",)


FUSES = Number("finding.fused_factor", lambda found: found.fused_factor,
               "joules of a call of layer_norm_gelu eager, by those of fused")  # fmt: skip
QUESTIONS = (
    Name("finding.best", lambda found: (found.best,), "the matmul with the most operations per joule",
         choices=MATMULS),
    Number("finding.tflops_per_w", lambda found: found.rates[found.best],
           "2 m n k floating point operations, by all joules of the counter, of the best matmul"),
    Number("finding.factor", lambda found: found.factor, "TFLOP/s per watt of the best matmul, by fp32's"),
    FUSES,
    Number("finding.race_j", lambda found: found.race_j,
           "joules of a bf16 call, and idle power by the time until a call of fp32 would have ended"),
    Name("finding.race", race, "compare race_j with the joules of a call of fp32", choices=("race", "slow")),
)  # fmt: skip


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "recording", one for each question, and "explanation"."""
    name = answers.text("trace")
    path = workspace / name if name else ENTRY.folder / RECORDED
    try:
        found = read(path)
    except LabError as error:
        reason = "there are no usable readings to check it against"
        return [
            failed("recording", str(error)),
            *(not_checked(each.key, reason) for each in QUESTIONS),
            explanation(answers),
        ]
    recorded = ENTRY.folder / RECORDED
    is_ours = recorded.is_file() and recorded.read_bytes() == path.read_bytes()
    checks = []
    for question in QUESTIONS:
        if question is FUSES and not {EAGER, FUSED} <= set(found.workloads):
            checks.append(not_checked(FUSES.key, f"{path.name} has no {EAGER} or no {FUSED}"))
        else:
            checks.append(ncu_questions.graded(question, found, answers))
    said = "the one that came with the exercise" if is_ours else "your own"
    return [passed("recording", f"{said}, of {found.gpu}"), *checks, explanation(answers)]


def repair(workspace: Path, _: Answers) -> list[GradedCheck]:
    """The check "result", and one for each number of a row."""
    from profiling_lab.exercises.e13_energy_efficiency import repair as judge

    return judge.checks(ENTRY.folder / REPAIRED, workspace / REPAIRED)


EXERCISE = Exercise(
    entry=ENTRY,
    question="Which precision and which implementation need the fewest joules?",
    starter=("README.md", PROGRAM, REPAIRED, "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=(PROGRAM,),
    recording=RECORDED,
    mistakes=(
        Mistake("the most precise one", {"finding.best": "fp32"}, "finding.best"),
        Mistake("multiply and add as one operation", {"finding.tflops_per_w": 0.47}, "finding.tflops_per_w"),
        Mistake("of the table that is not repaired", {"finding.factor": 10.5}, "finding.factor"),
        Mistake("the other way round", {"finding.fused_factor": 0.4}, "finding.fused_factor"),
        Mistake("without the idle time", {"finding.race_j": 1.1}, "finding.race_j"),
        Mistake("slow work at low power", {"finding.race": "slow"}, "finding.race"),
        Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
    ),
    writes="readings.json",
    look="python energy_benchmark.py",
)
