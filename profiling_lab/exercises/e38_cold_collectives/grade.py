# SPDX-License-Identifier: Apache-2.0
"""Grade E38. The right answers are computed from the learner's own recordings, one per rank."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np

from profiling_lab.analysis.collectives import CollectiveSum, collectives
from profiling_lab.analysis.lines_host import host_lines
from profiling_lab.analysis.ranks import LocalPool
from profiling_lab.analysis.ranks.reading import files_of
from profiling_lab.errors import LabError, NotEnoughDataError
from profiling_lab.exercises import ncu_questions
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed
from profiling_lab.exercises.job_facts import is_ours, line_check
from profiling_lab.exercises.ncu_questions import Name, Number
from profiling_lab.trace import Trace
from profiling_lab.trace.window import WindowSelection

ENTRY = entry("cold-collectives")
PROGRAM, REPAIRED = "cold_collectives.py", "bandwidth.py"
STARTER = "recorded/starter_h200"
RANKS = ("0", "1")
FIRST, WARM_FROM = 0, 2
"""steps: with the making of the communicator; from which on all is warm"""
COLD_TIMES = 20
"""the longest wait by the transfer, at least, while the problem is there"""


@dataclass(frozen=True, slots=True)
class ColdFacts:
    """What the recordings of a cold job say."""

    first_host_ms: float
    """in which rank 0's host is in the first all-reduce"""
    late: CollectiveSum
    """of the others the one in which ranks wait longest"""
    line: tuple[str, int] | None
    """where the host of the late rank is meanwhile; None without samples"""
    transfer_us: float
    """of the warm ones, the median"""
    bus_gb_s: float

    @property
    def waits_ms(self) -> float:
        return (self.late.arrivals.spread_ns or 0) / 1e6

    @property
    def last_rank(self) -> int:
        """Of the late one."""
        return -1 if self.late.arrivals.last_rank is None else self.late.arrivals.last_rank


def cold_facts(path: Path) -> ColdFacts:
    """Raises LabError for recordings that are not of this program."""
    files = files_of([str(path)])
    found = collectives(files, "collective", pool=LocalPool(1))
    rows = [row for row in found.rows if row.kind == "AllReduce" and row.step is not None]
    waited = [row for row in rows if row.arrivals.spread_ns is not None and (row.step or 0) > FIRST]
    warm = [row for row in waited if (row.step or 0) >= WARM_FROM and row.arrivals.transfer_ns]
    if not warm:
        raise NotEnoughDataError(f"{path} has no all-reduces of two ranks in steps after the second")
    late = max(waited, key=lambda row: row.arrivals.spread_ns or 0)
    by_rank = {facts.rank: facts.path for facts in found.ranks}
    if 0 not in by_rank:
        raise NotEnoughDataError(f"{path} has no recording of rank 0")
    rates = [row.arrivals.bus_bytes_per_s for row in warm if row.arrivals.bus_bytes_per_s]
    last = late.arrivals.last_rank
    return ColdFacts(
        first_host_ms=_host_ms(by_rank[0], f"all_reduce {FIRST}"),
        late=late,
        line=_busy_line(by_rank[last], late.step) if last in by_rank else None,
        transfer_us=statistics.median(_transfer_ns(row) for row in warm) / 1e3,
        bus_gb_s=statistics.median(rates) / 1e9 if rates else 0.0,
    )


def _transfer_ns(row: CollectiveSum) -> float:
    """Of one rank on average."""
    return (row.arrivals.transfer_ns or 0) / max(row.ranks, 1)


def _host_ms(path: str, name: str) -> float:
    """How long the host was in the range of this name."""
    with Trace.open(path) as trace:
        found = trace.ranges
        if name not in found.names:
            raise NotEnoughDataError(f"{path} has no range {name!r}: record {PROGRAM} with its NVTX ranges")
        rows = np.flatnonzero(found.name == found.names.index(name))
        return float((found.end_ns[rows] - found.start_ns[rows]).max() / 1e6)


def _busy_line(path: str, step: int | None) -> tuple[str, int] | None:
    """The line with most samples of the host in a step."""
    try:
        with Trace.open(path) as trace:
            rows = host_lines(trace.windowed(WindowSelection(step=str(step)))).rows
    except LabError:
        return None
    return (PurePath(rows[0].file).name, rows[0].line) if rows else None


QUESTIONS = (
    Number("first.host_ms", lambda facts: facts.first_host_ms,
           "ms in which the host of rank 0 is in the range `all_reduce 0`, from `profiling-lab ranges`",
           slack_frac=0.05),
    Number("late.step", lambda facts: float(facts.late.step or 0),
           "after step 0, in which step do ranks wait longest in the all-reduce?", slack_frac=0.0),
    Name("late.rank", lambda facts: (str(facts.last_rank),),
         "which rank comes last? `last` in `profiling-lab collectives --by collective`", choices=RANKS),
    Number("late.kernel_ms", lambda facts: facts.late.times.longest / 1e6,
           "ms of the longest kernel of this all-reduce: on which rank is it?", slack_frac=0.05),
    Number("late.waits_ms", lambda facts: facts.waits_ms,
           "ms of that kernel until the last rank comes", slack_frac=0.05),
    Number("warm.transfer_us", lambda facts: facts.transfer_us,
           "us from the last rank's arrival to the end, the median of the steps from 2 on", slack_frac=0.15),
    Number("warm.bus_gb_s", lambda facts: facts.bus_gb_s,
           "GB/s from the last rank's arrival on, the median of the steps from 2 on", slack_frac=0.15),
)  # fmt: skip


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "recording", one for each question, "line" and "explanation"."""
    given = answers.text("trace")
    path = workspace / given if given else ENTRY.folder / STARTER
    later = (*(question.key for question in QUESTIONS), "line")
    try:
        facts = cold_facts(path)
        wrong = ""
        if 1e3 * facts.waits_ms < COLD_TIMES * facts.transfer_us:
            wrong = "in these recordings no rank waits for long: record the unchanged program"
    except LabError as error:
        wrong = f"{error}. `profiling-lab exercise profile` makes new recordings"
    if wrong:
        reason = "there are no usable recordings to check it against"
        return [
            failed("recording", wrong),
            *(not_checked(name, reason) for name in later),
            explanation(answers),
        ]
    ours = is_ours(path, ENTRY.folder / STARTER)
    return [
        passed("recording", "the ones that came with the exercise" if ours else "your own"),
        *(ncu_questions.graded(each, facts, answers) for each in QUESTIONS),
        _line(facts, answers),
        explanation(answers),
    ]


def _line(facts: ColdFacts, answers: Answers) -> GradedCheck:
    if facts.line is None:
        return not_checked(
            "line", "these recordings have no samples of the host: record with --sample-python"
        )
    advice = "where is the host of the late rank in this step?"
    return line_check("line", answers, facts.line, key="late", advice=advice)


def repair(workspace: Path, _: Answers) -> list[GradedCheck]:
    """The checks "result" and "measured"."""
    from profiling_lab.exercises.e38_cold_collectives import repair as judge

    return judge.checks(ENTRY.folder / REPAIRED, workspace / REPAIRED)


EXERCISE = Exercise(
    entry=ENTRY,
    question="A cold profile shows 10 ms of NCCL for 30 us of transfer: why?",
    starter=("README.md", PROGRAM, REPAIRED, "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=(PROGRAM,),
    recording=STARTER,
    mistakes=(
        Mistake("the kernel alone", {"first.host_ms": 0.15}, "first.host_ms"),
        Mistake("the start of the whole program", {"first.host_ms": 9000.0}, "first.host_ms"),
        Mistake("a warm step", {"late.step": 5}, "late.step"),
        Mistake("the rank with the long kernel", {"late.rank": "0"}, "late.rank"),
        Mistake("a warm kernel", {"late.kernel_ms": 0.05}, "late.kernel_ms"),
        Mistake("microseconds", {"late.waits_ms": 10_000.0}, "late.waits_ms"),
        Mistake("half of it: the mean of both ranks", {"late.waits_ms": 4.0}, "late.waits_ms"),
        Mistake("the mean of all calls", {"warm.transfer_us": 1100.0}, "warm.transfer_us"),
        Mistake("by the long kernel", {"warm.bus_gb_s": 0.4}, "warm.bus_gb_s"),
        Mistake("the peak of the link", {"warm.bus_gb_s": 900.0}, "warm.bus_gb_s"),
        Mistake("the line of the all-reduce", {"late.line": 51}, "line"),
        Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
    ),
    record_options=("--sample-python",),
    ranks=2,
    look="collectives --by collective",
)
