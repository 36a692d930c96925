# SPDX-License-Identifier: Apache-2.0
"""Grade E23. The right answers are what `profiling-lab diff` computes from each pair of recordings."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePath

from profiling_lab.analysis.diff.diff import DiffResult, DiffRow, diff
from profiling_lab.errors import LabError
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, passed
from profiling_lab.trace import Trace

FOLDER = Path(__file__).parent
PAIRS = ("a", "b", "c")
OWN = "own"
IDLE = "GPU idle"
SLOWER, FASTER, SAME = "slower", "faster", "no change"
CANNOT_TELL, NOT_COMPARABLE = "cannot tell", "not comparable"
VERDICTS = (SLOWER, FASTER, SAME, CANNOT_TELL, NOT_COMPARABLE)
TOLERANCE_FRAC = 0.03
COUNTS_FRAC = 0.05  # of the step: smaller changes of a row are no answer
ALSO_RIGHT_FRAC = 0.5  # another row with at least this share of the largest change is right too


@dataclass(frozen=True, slots=True)
class Truth:
    """What one pair of recordings says."""

    verdict: str
    change_ms: float
    worse: dict[str, float]
    """rows that got slower by enough, with their change in ms; the largest first"""
    better: dict[str, float]


def truth(before: Path, after: Path) -> Truth:
    """Compare the pair. Raises LabError."""
    with ExitStack() as opened:
        sides = [[opened.enter_context(Trace.open(path))] for path in (before, after)]
        result = diff(sides[0], sides[1])
    verdict = _verdict(result)
    if verdict not in (SLOWER, FASTER):
        return Truth(verdict, 0.0, {}, {})
    counts_ns = COUNTS_FRAC * result.before.median_ns
    rows = [row for row in result.rows if abs(row.change_ns) >= counts_ns and row.kind in ("line", "idle")]
    worse = {_name(row): row.change_ns / 1e6 for row in reversed(rows) if row.change_ns > 0}
    better = {_name(row): row.change_ns / 1e6 for row in reversed(rows) if row.change_ns < 0}
    return Truth(verdict, result.change_ns / 1e6, worse, better)


def _verdict(result: DiffResult) -> str:
    if not result.comparable:
        return NOT_COMPARABLE
    return {"faster": FASTER, "slower": SLOWER, "within the noise": SAME, "undecided": CANNOT_TELL}[
        result.state
    ]


def _name(row: DiffRow) -> str:
    return IDLE if row.kind == "idle" else f"{PurePath(row.file).name}:{row.line}"


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """Four checks and the explanation for each pair, and for the learner's own pair if there is one."""
    checks = []
    for pair in PAIRS:
        checks += _pair(pair, answers, *(_recorded(pair, side) for side in ("before", "after")))
    own = [answers.text(f"{OWN}.{side}") for side in ("before", "after")]
    if any(own):
        if not all(own):
            return [*checks, failed(f"{OWN} verdict", "[own] needs both recordings: before and after")]
        checks += _pair(OWN, answers, *(workspace / str(name) for name in own))
    return checks


def _recorded(pair: str, side: str) -> Path:
    return FOLDER / "recorded" / f"{pair}_{side}_h200.sqlite"


def _pair(pair: str, answers: Answers, before: Path, after: Path) -> list[GradedCheck]:
    try:
        right = truth(before, after)
    except LabError as error:
        return [failed(f"{pair} verdict", str(error))]
    return [
        _said(pair, answers, right),
        _change(pair, answers, right),
        _row(pair, "worse", answers, right.worse),
        _row(pair, "better", answers, right.better),
        _why(pair, answers),
    ]


def _said(pair: str, answers: Answers, right: Truth) -> GradedCheck:
    name, given = f"{pair} verdict", (answers.text(f"{pair}.verdict") or "").strip().lower()
    if not given:
        return failed(name, f"not answered yet: one of {', '.join(VERDICTS)}")
    if given not in VERDICTS:
        return failed(name, f"{given!r} is not a verdict: write one of those named in answer.toml")
    if given == right.verdict:
        return passed(name, given)
    if right.verdict == NOT_COMPARABLE:
        return failed(name, "before times: did both recordings do the same work in a step?")
    if right.verdict == SAME:
        return failed(name, "look at the interval of the change, and at what it contains")
    if right.verdict == CANNOT_TELL:
        return failed(name, "how many steps does each side have?")
    return failed(name, "look at the sign of the change and of both ends of its interval")


def _change(pair: str, answers: Answers, right: Truth) -> GradedCheck:
    name, given = f"{pair} change", answers.number(f"{pair}.change_ms")
    if not right.change_ms:
        if given is None:
            return passed(name, "nothing claimed")
        return failed(name, "these recordings support no number: leave it at 0")
    if given is None:
        return failed(name, "not answered yet: the change of the median step in ms, negative if it is faster")
    if _close(given, right.change_ms):
        return passed(name, f"{given:+g} ms, recomputed {right.change_ms:+.3f} ms")
    if _close(-given, right.change_ms):
        return failed(name, "the sign is wrong: after minus before")
    if _close(1000 * given, right.change_ms) or _close(given / 1000, right.change_ms):
        return failed(name, "write it in ms")
    return failed(name, "not the change of the median step: the first line of `diff` has it")


def _row(pair: str, side: str, answers: Answers, right: dict[str, float]) -> GradedCheck:
    """The row that got worse (or better) by the most, and by how much."""
    name, given, ms = f"{pair} {side}", answers.text(f"{pair}.{side}"), answers.number(f"{pair}.{side}_ms")
    if not right:
        if given is None and ms is None:
            return passed(name, "nothing claimed")
        return failed(
            name, "no row of this pair changed by more than its noise and 5 % of the step: leave it empty"
        )
    if given is None or ms is None:
        return failed(name, f"not answered yet: {side} and {side}_ms, a row of `diff` and its change")
    largest = max(map(abs, right.values()))
    found = {row: change for row, change in right.items() if _same_row(given, row)}
    if not found:
        return failed(name, f"{given!r} is not a row that got {side} by 5 % of the step or more")
    change = max(found.values(), key=abs)
    if abs(change) < ALSO_RIGHT_FRAC * largest:
        return failed(name, f"{given!r} did, but another row changed far more")
    if not _close(abs(ms), abs(change)):
        return failed(name, f"{side}_ms is not the change of that row")
    return passed(name, f"{given}: {change:+.3f} ms")


def _same_row(given: str, row: str) -> bool:
    return PurePath(given.strip()).name.lower() == row.lower()


def _close(given: float, right: float) -> bool:
    return abs(given - right) <= TOLERANCE_FRAC * abs(right)


def _why(pair: str, answers: Answers) -> GradedCheck:
    if answers.text(f"{pair}.why") is None:
        return failed(f"{pair} why", "not answered yet: the evidence in your own words")
    return passed(f"{pair} why", "written down; this check does not judge its content")


EXERCISE = Exercise(
    entry=entry("comparison-reports"),
    question="Is the step slower, faster or the same, and which line is the reason?",
    starter=("README.md", "answer.toml", "recorded"),
    findings=findings,
    repair=lambda _, __: [],
    program=(),
    recording="recorded/a_after_h200.sqlite",
    mistakes=(
        Mistake("the sign of the change", {"a.change_ms": -2.748}, "a change"),
        Mistake("microseconds", {"a.change_ms": 2748.0}, "a change"),
        Mistake("the sum of the GPU time instead of the step", {"a.change_ms": 47.062}, "a change"),
        Mistake("GPU time alone: the step follows it", {"a.verdict": "no change"}, "a verdict"),
        Mistake("one of the small rows", {"a.worse": "transformer.py:67", "a.worse_ms": 0.399}, "a worse"),
        Mistake("what got better is what got worse", {"a.worse": IDLE, "a.worse_ms": -6.646}, "a worse"),
        Mistake("the step's change as that of the line", {"a.worse_ms": 2.748}, "a worse"),
        Mistake("nothing got better", {"a.better": "", "a.better_ms": 0.0}, "a better"),
        Mistake("the medians differ by 7 per cent", {"b.verdict": FASTER}, "b verdict"),
        Mistake("a number for noise", {"b.change_ms": -1.222}, "b change"),
        Mistake("a reason for noise", {"b.better": "train.py:51", "b.better_ms": -0.924}, "b better"),
        Mistake("times of different work", {"c.verdict": SLOWER}, "c verdict"),
        Mistake("a number for different work", {"c.change_ms": 3.967}, "c change"),
        Mistake("not a verdict", {"c.verdict": "worse"}, "c verdict"),
        Mistake("no evidence", {"b.why": ""}, "b why"),
    ),
)
