# SPDX-License-Identifier: Apache-2.0
"""Grade E15. The right answers are computed from the learner's own times and recordings."""

from __future__ import annotations

from pathlib import Path, PurePath

from profiling_lab.errors import LabError
from profiling_lab.exercises import job_repair, ncu_questions
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import NEAR_LINES, explanation
from profiling_lab.exercises.e15_multi_gpu_scaling.samples import ASKED_GPUS, ScalingFacts, scaling_facts
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed
from profiling_lab.exercises.job_repair import SLOWER_ALONE_FRAC, JobGoal
from profiling_lab.exercises.ncu_questions import Name, Number

ENTRY = entry("multi-gpu-scaling")
PROGRAM, BENCHMARK = "train.py", "scaling_benchmark.py"
RECORDED, SOLUTION = "recorded/starter_h200.json", "recorded/solution_h200.json"
GOAL = JobGoal(faster=1.2, steps=5, efficiency_frac=0.9, every_rank_returns=False)
CAUSES = {
    "unequal work": "extra work of one rank",
    "slow host": "a slow host",
    "slow GPU": "a slow GPU",
}
"""what `ranks` calls them, and what answer.toml does"""
CHOICES = (
    *CAUSES.values(),
    "work that every rank repeats",
    "small buckets",
    "a slow link",
    "too little work for each GPU",
)

RANKS = tuple(map(str, range(ASKED_GPUS)))

QUESTIONS = (
    Number("scaling.strong_percent", lambda facts: facts.strong_percent,
           "strong efficiency on the most GPUs, t(1) / (n t(n)), in per cent", slack_frac=0.0, slack=1.0),
    Number("scaling.weak_percent", lambda facts: facts.weak_percent,
           "weak efficiency on the most GPUs, t(1) / t(n), in per cent", slack_frac=0.0, slack=1.0),
    Number("scaling.serial_percent", lambda facts: 100 * facts.amdahl.serial_frac,
           "Amdahl's s of the strong times, in per cent; with two points from 1 / speedup = s + (1 - s) / n",
           slack_frac=0.05, slack=0.5),
    Number("scaling.speedup_8", lambda facts: facts.speedup_8,
           "what Amdahl's law then says for 8 GPUs: 1 / (s + (1 - s) / 8)", slack_frac=0.03),
    Name("finding.rank", lambda facts: {facts.late_rank},
         "the rank that `profiling-lab ranks` names, not the one that waits", choices=RANKS),
    Number("finding.saved_ms", lambda facts: facts.saved_ms,
           "what a step would save, as `profiling-lab ranks` says it, in ms", slack_frac=0.05),
    Name("finding.cause", lambda facts: {CAUSES.get(facts.cause, "")},
         "who waits for whom, and what does the late rank do meanwhile?", choices=CHOICES),
)  # fmt: skip


def opened(path: Path) -> ScalingFacts:
    """The measurement of the unchanged program. Raises LabError."""
    facts = scaling_facts(path)
    if CAUSES.get(facts.cause) != CHOICES[0]:
        raise LabError(
            f"{path.name} does not show the problem: no rank does extra work; measure the unchanged {PROGRAM}"
        )
    return facts


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "recording", one for each question, "line" and "explanation"."""
    given = answers.text("trace")
    path = workspace / given if given else ENTRY.folder / RECORDED
    try:
        if not given and not path.is_file():
            raise LabError(
                f"{answers.source} names no measurement (trace = ...), and none came with the exercise: "
                "`profiling-lab exercise profile` makes one"
            )
        facts = opened(path)
    except LabError as error:
        reason = "there is no usable measurement to check it against"
        names = [*(each.key for each in QUESTIONS), "finding.line"]
        return [
            failed("recording", str(error)),
            *(not_checked(name, reason) for name in names),
            explanation(answers),
        ]
    ours = ENTRY.folder / RECORDED
    is_ours = ours.is_file() and ours.read_bytes() == path.read_bytes()
    return [
        passed("recording", "the one that came with the exercise" if is_ours else "your own"),
        *(ncu_questions.graded(each, facts, answers) for each in QUESTIONS),
        _line(facts, answers),
        explanation(answers),
    ]


def _line(facts: ScalingFacts, answers: Answers) -> GradedCheck:
    name, file, line = "finding.line", answers.text("finding.file"), answers.integer("finding.line")
    if file is None or line is None:
        return failed(name, "not answered yet: [finding] file and line that `profiling-lab ranks` names")
    right_file, right = facts.late_line
    if PurePath(file).name == right_file and line == right:
        return passed(name, f"{right_file} line {line}")
    if PurePath(file).name == right_file and abs(line - right) <= NEAR_LINES:
        return failed(name, "close, but the table shows the executing line: use that one")
    return failed(name, "this line does not make a rank late in these recordings")


def repair(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "result" and "speed", and "after" of the repaired program's measurement."""
    checks = job_repair.checks(ENTRY.folder / PROGRAM, workspace / PROGRAM, GOAL)
    return [*checks, _after(workspace, answers)]


def _after(workspace: Path, answers: Answers) -> GradedCheck:
    given = answers.text("fix.after")
    if given is None:
        return not_checked("after", f"no measurement of the repaired program: {BENCHMARK} -o after.json")
    named = answers.text("trace")
    try:
        before = scaling_facts(workspace / named if named else ENTRY.folder / RECORDED)
        wrong = difference(before, after := scaling_facts(workspace / given))
    except LabError as error:
        return failed("after", str(error))
    said = f"strong efficiency {after.strong_percent:.1f} % on {after.most} GPUs"
    return failed("after", wrong) if wrong else passed("after", f"{said}, and no rank holds the others up")


def difference(before: ScalingFacts, after: ScalingFacts) -> str:
    """Why the second measurement does not show a repair; empty if it does."""
    if before.gpu != after.gpu or before.most != after.most:
        return "the two measurements are of different GPUs, or of different numbers of them"
    alone, together = after.strong[0].median_ns, after.strong[-1].median_ns
    if alone > SLOWER_ALONE_FRAC * before.strong[0].median_ns:
        return "on one GPU it takes longer than the original: a program that is slow on one GPU is no gain"
    if after.strong_percent < 100 * GOAL.efficiency_frac:
        goal = 100 * GOAL.efficiency_frac
        return (
            f"strong efficiency is {after.strong_percent:.1f} % on {after.most} GPUs; the goal is {goal:g} %"
        )
    if before.strong[-1].median_ns < GOAL.faster * together:
        gain = before.strong[-1].median_ns / together
        return f"the step on {after.most} GPUs is {gain:.2f} times as fast; the goal is {GOAL.faster:g} times"
    if after.late_rank:
        return f"rank {after.late_rank} still holds the others up"
    return ""


CACHED = """

_note = Journal.note


def note(self):
    if not self.pages:
        _note(self)
    else:
        self.pages.append(self.pages[0])


Journal.note = note
"""
MISTAKES = (
    Mistake("speedup instead of efficiency", {"scaling.strong_percent": 148.0}, "scaling.strong_percent"),
    Mistake("weak scaling divided by n too", {"scaling.weak_percent": 50.0}, "scaling.weak_percent"),
    Mistake("what is lost instead of s", {"scaling.serial_percent": 3.0}, "scaling.serial_percent"),
    Mistake("efficiency times 8", {"scaling.speedup_8": 6.9}, "scaling.speedup_8"),
    Mistake("the rank that waits", {"finding.rank": "1"}, "finding.rank"),
    Mistake("all of the exposed communication", {"finding.saved_ms": 123.4}, "finding.saved_ms"),
    Mistake("the links", {"finding.cause": "a slow link"}, "finding.cause"),
    Mistake("the buckets", {"finding.cause": "small buckets"}, "finding.cause"),
    Mistake("the line of the forward", {"finding.line": 31}, "finding.line"),
    Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
    Mistake(
        "the measurement of the unchanged program as that of the repaired one",
        {"fix.after": RECORDED},
        "after",
    ),
)


def _changed(old: str, new: str, more: str = "") -> dict[str, str]:
    """The solution with a change, as the text of train.py."""
    text = (ENTRY.folder / "solutions" / PROGRAM).read_text(encoding="utf-8")
    assert old in text
    return {PROGRAM: text.replace(old, new, 1).replace('if __name__ == "__main__"', "if False") + more}


NOTE, DDP = (
    "        job.journal.note()\n",
    "DistributedDataParallel(model) if dist.is_initialized() else model",
)
READ = ", *job.journal.read()]"
SECOND = "        if len(losses) % 2:\n            job.journal.note()\n"
WRONG_PROGRAMS = (
    ("the journal is left out", _changed(READ, "]"), "the return value of train"),
    ("the journal notes every second step", _changed(NOTE, SECOND), "the return value of train"),
    ("the norms of the first step for all steps", _changed("", "", CACHED), "the return value of train"),
    (
        "shares of other ranks are not added",
        _changed("dist.all_reduce(pages)", "pass"),
        "return value of train",
    ),
    ("gradients are not shared", _changed(DDP, "model"), "differs by"),
    ("every rank computes everything", _changed("number_of_this_rank(), None", "0, None"), "differs by"),
)
"""repairs that compute something else: why, the files, and what the hint says"""

EXERCISE = Exercise(
    entry=ENTRY,
    question="Why do two GPUs not halve the step, and would eight be worth their price?",
    starter=("README.md", PROGRAM, BENCHMARK, "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=(BENCHMARK,),
    recording=RECORDED,
    mistakes=(
        *MISTAKES,
        *(Mistake(why, {}, "result", files) for why, files, _ in WRONG_PROGRAMS[:3]),
    ),
    writes="scaling.json",
    look=f"python {BENCHMARK} --show",
)


def right_answers(facts: ScalingFacts) -> dict[str, object]:
    """Of all questions."""
    file, line = facts.late_line
    found: dict[str, object] = {"finding.file": file, "finding.line": line}
    for question in QUESTIONS:
        if isinstance(question, Number):
            found[question.key] = float(f"{question.right(facts):.4g}")
        else:
            found[question.key] = next(iter(question.right(facts)))
    return found
