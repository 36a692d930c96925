# SPDX-License-Identifier: Apache-2.0
"""The results of a rule: a finding with its evidence, or the reason why it abstains; and thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from profiling_lab.analysis.critical_path.savings import Saving
from profiling_lab.records import dataclass
from profiling_lab.trace import Frame

EVIDENCE_AT_MOST = 20

Confidence: TypeAlias = Literal["high", "medium", "low"]
"""high: counted from records; medium: inferred from times or names; low: a rough estimate"""
Severity: TypeAlias = Literal["high", "medium", "low"]
SEVERITIES: dict[Severity, float] = {"high": 0.15, "medium": 0.05, "low": 0.0}
"""the least share of the recording for each severity; nsys-ai uses the same shares"""


def severity_of(ns: float, span_ns: int) -> Severity:
    return next(name for name, share in SEVERITIES.items() if ns >= share * span_ns)


def lower(one: Severity, other: Severity) -> Severity:
    return max(one, other, key=list(SEVERITIES).index)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that a rule compares with, and its source. Rules read it as `view[THRESHOLD]`, because
    the user may override it with `--set RULE.NAME=VALUE`.
    """

    name: str
    what: str
    value: float
    unit: str
    source: str


WORTH = Threshold("worth", "least cost", 0.001, "of the recording", "ours: less is within the noise of steps")


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
    """One problem, made by `view.finding`. `run` fills in the rule's name and the severity."""

    what: str
    """one sentence with the measured numbers"""
    cost_ns: int
    """the most that a remedy can save; `cost_of` says which time was counted"""
    cost_of: str
    place: Frame | None
    """the line to look at; None if the trace has none"""
    evidence: tuple[Event, ...]
    """the events that cost most, at most EVIDENCE_AT_MOST of them"""
    events: int
    """the number of events"""
    remedy: str
    confidence: Confidence = "high"
    per_step_ns: int | None = None
    """the cost within the steps, per step; None if the trace has no steps"""
    severity: Severity = "low"
    severity_at_most: Severity = "high"
    """lower where a healthy program may do what was found here; see Rule.severity_at_most"""
    rule: str = ""
    cause: str = ""
    """the cause in one word, if the rule distinguishes several; else the rule's name"""
    saving: Saving | None = None
    """what the remedy takes away; None if that is not known"""
    gain_ns: int | None = None
    """what the program would win by the remedy (see gains.py); None if that cannot be known"""
    gain_per_step_ns: int | None = None
    """the same per step"""
    at_most_per_step_ns: int | None = None
    """what a step would win if all of the cost were saved; None if the trace has no steps"""
    rank_ns: int = 0
    """a fraction of the cost, by which findings are ranked and folded (Rule.wins_frac)"""
    wins_frac: float | None = None
    """the fraction of the cost that is usually saved here, if the rule knows; else Rule.wins_frac"""
    around: Frame | None = None
    """the line whose calls it lies between, as in a loop"""
    elsewhere: bool = False
    """its operations are launched at other lines: this one's remedy does not save them"""
    once: bool = False
    """all of the cost is in one of many steps"""
    little: bool = False
    """what it may save is of low severity, also where the severity is low for another reason"""
    effects: tuple[Finding, ...] = ()
    """the findings that this one explains"""
    kernel: str = ""
    """what hardware counters are of: findings about two kernels are two, also at one line"""
    gpu_ns_by_line: tuple[tuple[int, int], ...] = ()
    """the GPU time of its operations by line number. Findings about the same time are matched by it;
    empty if its events are not operations"""


def with_effects(findings: Iterable[Finding]) -> Iterator[Finding]:
    """These findings, each followed by the findings that it explains."""
    for finding in findings:
        yield finding
        yield from with_effects(finding.effects)


@dataclass(frozen=True, slots=True)
class Abstain:
    """The rule could not decide, with the reason."""

    reason: str
    to_record: str = ""
    """how to record what is missing: an option of profiling-lab, nsys or torch.profiler"""


RuleResult: TypeAlias = Sequence[Finding] | Abstain


# How to record what is missing, for data that several rules need.
LONGER = "more steps"
CALLS = "`profiling-lab record`, `nsys profile --trace=cuda`, or torch.profiler with ProfilerActivity.CUDA"
MEMORY_KINDS = "`profiling-lab record`, nsys from 2021 on, or torch.profiler"
STACKS = (
    "`profiling-lab record`; with nsys --python-backtrace=cuda --cudabacktrace=all:0 --sample=process-tree"
)
OPERATORS = "torch.profiler, or nsys with --pytorch=autograd-nvtx"
FROM_THE_START = "start the recording earlier, before these calls"


def where(place: Frame | None, text: str) -> str:
    """`text` if the finding has a line, else nothing."""
    return text if place else ""


def ms(ns: float) -> str:
    """`12.345 ms`. Findings are compared by eye, so all of them use milliseconds."""
    return f"{ns / 1e6:,.3f} ms"


def percent(frac: float) -> str:
    return f"{100 * frac:.1f} %"
