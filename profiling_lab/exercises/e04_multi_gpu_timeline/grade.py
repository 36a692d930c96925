# SPDX-License-Identifier: Apache-2.0
"""Grade E04. The right answers are computed from the learner's own recordings, one per rank."""

from __future__ import annotations

from pathlib import Path

from profiling_lab.errors import LabError
from profiling_lab.exercises import job_repair, ncu_questions
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed
from profiling_lab.exercises.job_facts import JobFacts, is_ours, job_facts, line_check
from profiling_lab.exercises.job_repair import JobGoal
from profiling_lab.exercises.ncu_questions import Name, Number

ENTRY = entry("multi-gpu-timeline")
PROGRAM = "ddp_training.py"
STARTER, SOLUTION = "recorded/starter_h100", "recorded/solution_h100"
GOAL = JobGoal(faster=1.03, steps=10)
REDUCE = "AllReduce"
EXPOSED_FRAC = 0.8
"""of the communication, what is exposed while the problem is there, at least"""
HIDES_FRAC = 0.5
"""of it, what may be exposed after the repair"""
LEAST_MESSAGES = 3
SAME_BYTES_FRAC = 0.95
WHEN = ("before backward", "during backward", "after backward")


def exposed_frac(facts: JobFacts) -> float:
    """What part of the communication no compute hides, on the rank that communicates least: the others also
    wait for it, which no size of buckets changes.
    """
    row = min(facts.job.rows, key=lambda row: row.communication_ns)
    return row.exposed_ns / max(row.communication_ns, 1)


def bytes_per_step(facts: JobFacts) -> float:
    return facts.message_bytes(REDUCE) * facts.per_step(REDUCE)


def bus_gb_s(facts: JobFacts) -> float:
    """Over the time from the last rank's arrival."""
    found = [row.bus_bytes_per_s for row in facts.kind(REDUCE) if row.bus_bytes_per_s]
    return max(found) / 1e9 if found else 0.0


def step_without_exposed_ms(facts: JobFacts) -> float:
    row = facts.rank(0)
    return (row.step_ns - row.exposed_ns) / 1e6


QUESTIONS = (
    Number("timeline.messages", lambda facts: facts.per_step(REDUCE),
           "all-reduces of one rank in one step: their count by the number of steps", slack=0.2),
    Number("timeline.message_mib", lambda facts: facts.message_bytes(REDUCE) / (1 << 20),
           "size of the message, as `profiling-lab collectives` shows it, in MiB"),
    Number("timeline.exposed_ms", lambda facts: facts.rank(0).exposed_ns / 1e6,
           "exposed communication of rank 0 in ms per step, from `profiling-lab ranks`", slack_frac=0.05),
    Number("timeline.bus_gb_s", bus_gb_s,
           "GB/s from the last rank's arrival on, from `profiling-lab ranks --by collective`",
           slack_frac=0.05),
    Name("timeline.runs", lambda _: ("after backward",),
         "where is the all-reduce on the timeline: which kernels run next to it?", choices=WHEN),
    Number("timeline.at_best_ms", step_without_exposed_ms,
           "ms of the step of rank 0 if compute hid all of the communication", slack_frac=0.05),
)  # fmt: skip
LATER = (*(question.key for question in QUESTIONS), "line")


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "recording", one for each question, "line" and "explanation"."""
    given = answers.text("trace")
    path = workspace / given if given else ENTRY.folder / STARTER
    try:
        facts = job_facts(path)
        wrong = unusable(facts)
        checks = [] if wrong else [*(ncu_questions.graded(each, facts, answers) for each in QUESTIONS)]
    except LabError as error:
        wrong, checks = f"{error}. `profiling-lab exercise profile` makes new recordings", []
    if wrong:
        reason = "there are no usable recordings to check it against"
        return [
            failed("recording", wrong),
            *(not_checked(name, reason) for name in LATER),
            explanation(answers),
        ]
    ours = is_ours(path, ENTRY.folder / STARTER)
    whose = "the ones that came with the exercise" if ours else "your own"
    return [passed("recording", whose), *checks, _line(facts, answers), explanation(answers)]


def unusable(facts: JobFacts) -> str:
    """Why these recordings are not of the unchanged program; empty if they are."""
    if not facts.kind(REDUCE):
        return "these recordings have no all-reduce: record the unchanged program on two GPUs"
    if exposed_frac(facts) < EXPOSED_FRAC:
        return (
            "these recordings do not show the problem: were they made after the repair? Record the "
            "unchanged program"
        )
    return ""


def _line(facts: JobFacts, answers: Answers) -> GradedCheck:
    """DDP broadcasts the weights where the model is wrapped; its all-reduces have no line."""
    right = facts.line_of("Broadcast")
    if right is None:
        return not_checked("line", "these recordings have no Python stack of the broadcast")
    return line_check("line", answers, right, advice="where the program decides how gradients are sent")


def repair(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "result", "speed" and "overlap"."""
    checks = job_repair.checks(ENTRY.folder / PROGRAM, workspace / PROGRAM, GOAL)
    return [*checks, overlap(workspace, answers)]


def overlap(workspace: Path, answers: Answers) -> GradedCheck:
    """What the recordings of the repaired program must show: the same bytes, hidden."""
    given, trace = answers.text("fix.after"), answers.text("trace")
    if given is None:
        return not_checked("overlap", "no recordings of the repaired program: [fix] after (the last step)")
    before = workspace / trace if trace else ENTRY.folder / STARTER
    path = workspace / given
    if is_ours(path, before) or is_ours(path, ENTRY.folder / STARTER):
        return failed("overlap", "[fix] after names the recordings of the unchanged program")
    try:
        old, new = job_facts(before), job_facts(path)
        moved, wanted = bytes_per_step(new), bytes_per_step(old)
    except LabError as error:
        return failed("overlap", str(error))
    part, messages = exposed_frac(new), new.per_step(REDUCE)
    said = f"{messages:.0f} all-reduces per step, {100 * part:.0f} % of the communication exposed"
    if moved < SAME_BYTES_FRAC * wanted:
        return failed("overlap", f"{moved / 2**20:.0f} MiB per step are reduced, not {wanted / 2**20:.0f}")
    if messages < LEAST_MESSAGES:
        return failed("overlap", f"{said}: one message cannot begin before all gradients are there")
    if part > HIDES_FRAC:
        return failed("overlap", f"{said}; the goal is at most {100 * HIDES_FRAC:.0f} %")
    return passed("overlap", said)


EXERCISE = Exercise(
    entry=ENTRY,
    question="What of the communication does compute hide, and what decides it?",
    starter=("README.md", PROGRAM, "profile_ddp.sh", "analyze_nccl.py", "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=(PROGRAM,),
    recording=STARTER,
    rules=("exposed_allreduce",),
    mistakes=(
        Mistake("all messages of the recording", {"timeline.messages": 12.0}, "timeline.messages"),
        Mistake("MB of a default bucket", {"timeline.message_mib": 25.0}, "timeline.message_mib"),
        Mistake("bytes instead of MiB", {"timeline.message_mib": 6e8}, "timeline.message_mib"),
        Mistake("the time of both ranks", {"timeline.exposed_ms": 1e3}, "timeline.exposed_ms"),
        Mistake("seconds", {"timeline.exposed_ms": 0.002}, "timeline.exposed_ms"),
        Mistake("the peak of the link", {"timeline.bus_gb_s": 900.0}, "timeline.bus_gb_s"),
        Mistake("as DDP is known to do it", {"timeline.runs": "during backward"}, "timeline.runs"),
        Mistake("nothing is left of the step", {"timeline.at_best_ms": 0.01}, "timeline.at_best_ms"),
        Mistake("the line of backward", {"finding.line": 79}, "line"),
        Mistake("a file of torch", {"finding.file": "distributed.py"}, "line"),
        Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
        Mistake(
            "the recordings of the unchanged program as those of the repaired one",
            {"fix.after": STARTER},
            "overlap",
        ),
    ),
    ranks=2,
    look="ranks",
)
