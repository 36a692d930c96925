# SPDX-License-Identifier: Apache-2.0
"""Grade E11. The right answers are computed from the learner's own recordings of two jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.analysis.ranks import JobResult
from profiling_lab.analysis.ranks.blame import SLOW_GPU, SLOW_HOST, UNEQUAL_WORK, Blame
from profiling_lab.errors import LabError
from profiling_lab.exercises import job_repair, ncu_questions
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed
from profiling_lab.exercises.job_facts import is_ours, job_facts, line_check
from profiling_lab.exercises.job_repair import JobGoal
from profiling_lab.exercises.ncu_questions import Name, Number, Question

ENTRY = entry("distributed-profiling")
STARTER, SOLUTION = "recorded/starter_h100", "recorded/solution_h100"
TORCH = "torch"
CAUSES = (SLOW_GPU, SLOW_HOST, UNEQUAL_WORK, "slow link")
RANKS = ("0", "1")
LINE = re.compile(r"(?!between )\S.*\.py:\d+")
MATTERS_FRAC = 0.05
"""of a step, what mending a rank must save"""
LEFT_FRAC = 0.5
"""of what the planted line costs, what its rank may still cost after the repair: no two hosts are alike"""


@dataclass(frozen=True, slots=True)
class Planted:
    """What is wrong with a job: its name is that of its table in answer.toml and of its folder."""

    name: str
    program: str
    cause: str
    goal: JobGoal


JOBS = (
    Planted("ddp", "train_ddp.py", UNEQUAL_WORK, JobGoal(faster=1.15, steps=10)),
    Planted("fsdp2", "train_fsdp.py", SLOW_HOST, JobGoal(faster=1.5, steps=8)),
)


def straggler(job: JobResult) -> Blame | None:
    """What `ranks` says, if it matters."""
    blame = job.verdict.blame
    return blame if blame is not None and blame.gain_ns >= MATTERS_FRAC * job.step_ns else None


def _other_waits_ms(name: str) -> Callable[[JobResult], float]:
    """What the rank waits that waits most."""
    return lambda job: max(row.wait_ns or 0 for row in job.rows) / 1e6


def questions(name: str) -> tuple[Question, ...]:
    """About one job."""

    def blame(job: JobResult) -> Blame:
        found = straggler(job)
        assert found is not None
        return found

    return (
        Name(f"{name}.rank", lambda job: (str(blame(job).rank),),
             "which rank do the others wait for? It has no reason to wait itself", choices=RANKS),
        Name(f"{name}.cause", lambda job: (blame(job).cause,),
             "does its GPU compute longer, and for the same kernels, or does it wait for its host?",
             choices=CAUSES),
        Number(f"{name}.waits_ms", _other_waits_ms(name),
               "ms per step that the other rank waits in collectives, from `profiling-lab ranks`",
               slack_frac=0.05),
        Number(f"{name}.saved_ms", lambda job: blame(job).gain_ns / 1e6,
               "ms per step that the slow rank costs, as `profiling-lab ranks` estimates it", slack_frac=0.1),
    )  # fmt: skip


def _talks_most(job: JobResult) -> str:
    return str(max(job.rows, key=lambda row: row.communication_ns).rank)


TORCH_QUESTIONS: tuple[Question, ...] = (
    Name("torch.longest", lambda job: (_talks_most(job),),
         "on which rank do the kernels of NCCL take longest?", choices=RANKS),
    Number("torch.nccl_ms", lambda job: max(row.communication_ns for row in job.rows) / 1e6,
           "ms per step of that rank in which kernels of NCCL run: all comm. of `profiling-lab ranks`",
           slack_frac=0.05),
)  # fmt: skip


def folder_of(workspace: Path, answers: Answers) -> Path:
    given = answers.text("trace")
    return workspace / given if given else ENTRY.folder / STARTER


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """For each job "recording", one check for each question, and "line"; those of torch.profiler; and
    "explanation".
    """
    folder = folder_of(workspace, answers)
    checks = [check for planted in JOBS for check in _of_job(planted, folder, answers)]
    return [*checks, *_of_torch(folder, answers), explanation(answers)]


def _of_job(planted: Planted, folder: Path, answers: Answers) -> list[GradedCheck]:
    name, asked = planted.name, questions(planted.name)
    recording, line = f"{name} recording", f"{name} line"
    job, wrong = _opened(folder / name)
    blame = straggler(job) if job else None
    if job and (blame is None or blame.cause != planted.cause):
        wrong = f"{folder.name}/{name} does not show the problem: was it recorded after the repair?"
    elif blame is not None and not LINE.fullmatch(blame.line):  # none, or between two lines
        wrong = f"{folder.name}/{name} has no line for the problem: record it with `profiling-lab record`"
    if wrong or job is None or blame is None:
        reason = "there are no usable recordings to check it against"
        return [
            failed(recording, wrong),
            *(not_checked(key, reason) for key in (*(q.key for q in asked), line)),
        ]
    whose = "the ones that came with the exercise" if _is_ours(folder, name) else "your own"
    return [
        passed(recording, whose),
        *(ncu_questions.graded(each, job, answers) for each in asked),
        line_check(
            line, answers, _line(blame), key=name, advice="which line does `profiling-lab ranks` name?"
        ),
    ]


def _line(blame: Blame) -> tuple[str, int]:
    file, _, line = blame.line.rpartition(":")
    return Path(file).name, int(line)


def _is_ours(folder: Path, name: str) -> bool:
    return is_ours(folder / name, ENTRY.folder / STARTER / name)


def _opened(path: Path) -> tuple[JobResult | None, str]:
    """The job, or why there is none."""
    try:
        return job_facts(path).job, ""
    except LabError as error:
        return None, f"{error}. `profiling-lab exercise profile` makes new recordings"


def _of_torch(folder: Path, answers: Answers) -> list[GradedCheck]:
    job, wrong = _opened(folder / TORCH)
    if job is None:
        reason = "there are no usable traces to check it against"
        return [failed("torch recording", wrong), *(not_checked(q.key, reason) for q in TORCH_QUESTIONS)]
    whose = "the ones that came with the exercise" if _is_ours(folder, TORCH) else "your own"
    return [
        passed("torch recording", whose),
        *(ncu_questions.graded(each, job, answers) for each in TORCH_QUESTIONS),
    ]


def repair(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """For each program "result", "speed" and "after"."""
    checks = []
    for planted in JOBS:
        programs = (ENTRY.folder / planted.program, workspace / planted.program)
        checks += job_repair.checks(*programs, planted.goal, planted.name)
        checks.append(after(planted, workspace, answers))
    return checks


def after(planted: Planted, workspace: Path, answers: Answers) -> GradedCheck:
    """What the recordings of the repaired program must show: no rank waits for the planted line any more."""
    name, given = f"{planted.name} after", answers.text("fix.after")
    if given is None:
        return not_checked(name, "no recordings of the repaired program: [fix] after (the last step)")
    path, before = workspace / given / planted.name, folder_of(workspace, answers) / planted.name
    if is_ours(path, before) or is_ours(path, ENTRY.folder / STARTER / planted.name):
        return failed(name, "[fix] after names the recordings of the unchanged program")
    job, wrong = _opened(path)
    if job is None:
        return failed(name, wrong)
    blame, was = straggler(job), straggler(old) if (old := _opened(before)[0]) else None
    said = f"{job.step_ns / 1e6:.1f} ms per step"
    if blame is None:
        return passed(name, f"{said}, and no rank holds it up")
    left = f"{blame.gain_ns / 1e6:.1f} of them because of {blame.cause} on rank {blame.rank}"
    same_ns = was.gain_ns if was and (blame.rank, blame.cause) == (was.rank, was.cause) else None
    if same_ns is not None and blame.gain_ns > LEFT_FRAC * same_ns:
        return failed(name, f"{said}, {left}")
    return passed(name, f"{said}; what is left: {left}")


EXERCISE = Exercise(
    entry=ENTRY,
    question="All ranks take the same time: which one do the others wait for, and why?",
    starter=(
        "README.md", "train_ddp.py", "train_fsdp.py", "profile_distributed.py", "answer.toml", "recorded",
    ),
    findings=findings,
    repair=repair,
    program=("profile_distributed.py",),
    recording=STARTER,
    mistakes=(
        Mistake("the rank whose collectives are long", {"ddp.rank": "1"}, "ddp.rank"),
        Mistake("long collectives, so a slow link", {"ddp.cause": "slow link"}, "ddp.cause"),
        Mistake("longer compute, so a slow GPU", {"ddp.cause": "slow GPU"}, "ddp.cause"),
        Mistake("the line with most GPU time", {"ddp.line": 32}, "ddp line"),
        Mistake("a line of the other program", {"ddp.file": "train_fsdp.py"}, "ddp line"),
        Mistake("the time of all steps", {"ddp.waits_ms": 500.0}, "ddp.waits_ms"),
        Mistake("all of the step", {"ddp.saved_ms": 100.0}, "ddp.saved_ms"),
        Mistake("the rank that waits", {"fsdp2.rank": "0"}, "fsdp2.rank"),
        Mistake("other documents, so other work for the GPU", {"fsdp2.cause": "unequal work"}, "fsdp2.cause"),
        Mistake("where the host's time becomes visible", {"fsdp2.line": 98}, "fsdp2 line"),
        Mistake("seconds", {"fsdp2.saved_ms": 0.03}, "fsdp2.saved_ms"),
        Mistake("the rank that the others wait for", {"torch.longest": "0"}, "torch.longest"),
        Mistake("one kernel", {"torch.nccl_ms": 0.05}, "torch.nccl_ms"),
        Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
    ),
    ranks=2,
    writes="run",
    look="ranks",
)  # fmt: skip
