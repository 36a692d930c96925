# SPDX-License-Identifier: Apache-2.0
"""What a rule finds, by which thresholds, and how it says that it could not tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from profiling_lab.trace import Frame

EVIDENCE_AT_MOST = 20

Confidence: TypeAlias = Literal["high", "medium", "low"]
"""high: counted from records; medium: concluded from times or names; low: a good guess"""
Severity: TypeAlias = Literal["high", "medium", "low"]
SEVERITIES: dict[Severity, float] = {"high": 0.15, "medium": 0.05, "low": 0.0}
"""by the cost's share of the recording, from; nsys-ai draws its lines at the same shares"""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that decides, and who says that it should be this one. Rules read it as `view[THRESHOLD]`:
    the user may have set another with `--set RULE.NAME=VALUE`.
    """

    name: str
    what: str
    value: float
    unit: str
    source: str


WORTH = Threshold(
    "worth", "least cost", 0.001, "of the recording", "ours: less is lost in the spread of steps"
)


@dataclass(frozen=True, slots=True)
class Event:
    """One row of a table of the trace: `trace.operations`, `trace.calls`, `trace.ranges` or
    `trace.overheads`."""

    table: str
    row: int
    start_ns: int

    def __str__(self) -> str:
        return f"{self.table}[{self.row}]"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; `view.finding` makes one. `run` fills in the rule's name and the severity."""

    what: str
    """a sentence with its numbers"""
    cost_ns: int
    """the most that a remedy can win, counted as `cost_of` says"""
    cost_of: str
    place: Frame | None
    """the line to look at; None where the trace names none"""
    evidence: tuple[Event, ...]
    """the weightiest events, at most EVIDENCE_AT_MOST of them"""
    events: int
    """how many events there are"""
    remedy: str
    confidence: Confidence = "high"
    per_step_ns: int | None = None
    """the part of the cost from the first step to the last, per step; None where the trace has no steps"""
    severity: Severity = "low"
    rule: str = ""
    cause: str = ""
    """what is wrong in one word, where the rule tells several causes apart; else its name"""
    gain_ns: int = 0
    """what the remedy should win: a part of the cost (Rule.wins_frac)"""
    gain_per_step_ns: int | None = None
    """the same of the cost per step"""
    effects: tuple[Finding, ...] = ()
    """findings that this one explains"""
    gpu_ns_by_line: tuple[tuple[int, int], ...] = ()
    """the GPU time of its operations by number of the line: what other findings about the same time are told
    by; empty where its events are no operations"""


def with_effects(findings: Iterable[Finding]) -> Iterator[Finding]:
    """These findings, each followed by all that it explains."""
    for finding in findings:
        yield finding
        yield from with_effects(finding.effects)


@dataclass(frozen=True, slots=True)
class Abstain:
    """The rule could not tell, and why."""

    reason: str
    to_record: str = ""
    """what would have recorded what is missing: an option of ours, of nsys or of torch.profiler"""


Verdict: TypeAlias = Sequence[Finding] | Abstain


# What records the missing thing, where several rules miss it.
LONGER = "more steps"
CALLS = "`profiling-lab record`, `nsys profile --trace=cuda`, or torch.profiler with ProfilerActivity.CUDA"
MEMORY_KINDS = "`profiling-lab record`, nsys from 2021 on, or torch.profiler"
STACKS = (
    "`profiling-lab record`; with nsys --python-backtrace=cuda --cudabacktrace=all:0 --sample=process-tree"
)
OPERATORS = "torch.profiler, or nsys with --pytorch=autograd-nvtx"
FROM_THE_START = "the program from before these calls on: start the recording earlier"


def where(place: Frame | None, text: str) -> str:
    """What a sentence says of the line it is about, where there is one."""
    return text if place else ""


def ms(ns: float) -> str:
    """`12.345 ms`: findings are compared by eye, so all of them speak milliseconds."""
    return f"{ns / 1e6:,.3f} ms"


def percent(frac: float) -> str:
    return f"{100 * frac:.1f} %"
