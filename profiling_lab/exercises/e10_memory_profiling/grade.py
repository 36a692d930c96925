# SPDX-License-Identifier: Apache-2.0
"""Grade E10. The right numbers are computed from the memory events of the learner's own trace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed
from profiling_lab.exercises.program_repair import load

ENTRY = entry("memory-profiling")
PROGRAM = "train.py"
RECORDED = "recorded/trace_cpu.json.gz"
PEAK_WITHIN = "evaluate"
LINES = {
    "peak": "total = total + loss",
    "list": "self.seen.append(x)",
    "loss": "wanted = F.one_hot(labels, classes)",
}
"""the planted lines, by the beginning of their text"""
LATER = (
    "peak mb", "peak within", "peak line", "list mb", "list line", "state mb", "state needed", "loss op",
    "loss line",
)  # fmt: skip
SLACK_FRAC = 0.03
LEAKS = 2
"""blocks of one operator and size that are alive at once, from which on they are more than one batch's"""


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """What a trace says about memory."""

    peak_mb: float
    within: str
    list_mb: float
    state_mb: float
    loss_op: str
    loss_ops: frozenset[str]
    """all that allocate within the loss"""


def tool() -> ModuleType:
    """The exercise's own memory.py."""
    return load(ENTRY.folder / "memory.py", "memory_of_the_exercise")


def memory_facts(path: Path) -> MemoryFacts | str:
    """What the trace says, or why it says nothing."""
    memory = tool()
    try:
        events: list[dict[str, Any]] = memory.read(path)
        top, in_loss = memory.peak(events), memory.peak(events, "train > loss")
    except FileNotFoundError:
        return f"there is no {path.name} in this folder: `profiling-lab exercise profile` makes one"
    except (OSError, EOFError, ValueError, KeyError, TypeError, json.JSONDecodeError):
        return f"{path.name} is not a trace of torch.profiler: `profiling-lab exercise profile` makes one"
    if not top.blocks:
        return f"{path.name} has no memory events: profile_memory=True"
    kept = [block for block in top.blocks if block.within == "train > forward"]
    logs = [block.bytes for block in top.blocks if block.within == "evaluate > loss"]
    repeated = max((logs.count(size) for size in logs), default=0)
    if not in_loss.blocks or not kept or repeated < LEAKS:
        return "this trace does not show the problem: was it made after the repair?"
    largest = max(
        (each for each in in_loss.blocks if each.within == "train > loss"), key=lambda each: each.bytes
    )
    mb = memory.MB
    return MemoryFacts(
        top.bytes / mb,
        top.within.partition(" > ")[0],
        sum(block.bytes for block in kept) / mb,
        sum(block.bytes for block in top.blocks if block.within == "train > optimizer") / mb,
        largest.op,
        frozenset(block.op for block in in_loss.blocks if block.within == "train > loss"),
    )


def planted(name: str) -> int:
    """The line of the starter."""
    lines = (ENTRY.folder / PROGRAM).read_text(encoding="utf-8").splitlines()
    (number,) = (number for number, text in enumerate(lines, 1) if text.strip().startswith(LINES[name]))
    return number


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "recording", those of LATER, and "explanation"."""
    name = answers.text("trace")
    path = workspace / name if name else ENTRY.folder / RECORDED
    found = memory_facts(path)
    if isinstance(found, str):
        reason = "there is no usable trace to check it against"
        return [failed("recording", found), *(not_checked(each, reason) for each in LATER)]
    own = name and path.resolve() != (ENTRY.folder / RECORDED).resolve()
    return [
        passed("recording", "your own" if own else "the one that came with the exercise"),
        _mb("peak", answers, found.peak_mb, "the first line of memory.py"),
        _within(answers, found),
        _line(
            "peak",
            answers,
            "it does not keep the blocks of earlier batches: what still refers to their graph?",
        ),
        _mb("list", answers, found.list_mb, 'all rows "train > forward" of the peak'),
        _line("list", answers, "this line keeps nothing when the step is over"),
        _mb("state", answers, found.state_mb, 'all rows "train > optimizer" of the peak'),
        _needed(answers),
        _op(answers, found),
        _line("loss", answers, "this line does not call that operator"),
        explanation(answers),
    ]


def _mb(name: str, answers: Answers, right: float, where: str) -> GradedCheck:
    check, given = f"{name} mb", answers.number(f"{name}.mb")
    if given is None:
        return failed(check, f"not answered yet: {where}")
    if abs(given - right) <= SLACK_FRAC * right:
        return passed(check, f"{given:g}, recomputed {right:.2f}")
    if any(abs(given / unit - right) <= SLACK_FRAC * right for unit in (1e6, 1e3, 1e-3)):
        return failed(check, "write it in MB of 1,000,000 bytes")
    return failed(check, f"another value in this trace: {where}")


def _within(answers: Answers, found: MemoryFacts) -> GradedCheck:
    given = (answers.text("peak.within") or "").partition(">")[0].strip()
    if not given:
        return failed("peak within", "not answered yet: the outermost range around the peak")
    if given == found.within:
        return passed("peak within", given)
    return failed("peak within", "the peak of this trace is elsewhere")


def _line(name: str, answers: Answers, advice: str) -> GradedCheck:
    check, given, right = f"{name} line", answers.integer(f"{name}.line"), planted(name)
    if given is None:
        return failed(check, f"not answered yet: a line of {PROGRAM}")
    return passed(check, f"{PROGRAM} line {given}") if given == right else failed(check, advice)


def _needed(answers: Answers) -> GradedCheck:
    given = (answers.text("state.needed") or "").strip().lower()
    if given not in ("yes", "no"):
        return failed("state needed", 'not answered yet: "yes" or "no"')
    if given == "no":
        return failed("state needed", "what would AdamW do in the next step without its two moments?")
    return passed("state needed", "two moments per parameter: the price of AdamW, twice the parameters")


def _op(answers: Answers, found: MemoryFacts) -> GradedCheck:
    given = answers.text("loss.op")
    if given is None:
        return failed(
            "loss op", 'not answered yet: an operator, as memory.py --within "train > loss" shows it'
        )
    if given == found.loss_op:
        return passed("loss op", given)
    if given in found.loss_ops:
        return failed("loss op", "another operator allocates a larger block: the column is called largest")
    return failed("loss op", f"{given!r} allocates nothing that is alive then")


def repair(workspace: Path, _: Answers) -> list[GradedCheck]:
    from profiling_lab.exercises.e10_memory_profiling import repair  # imports torch: only for grading

    return repair.checks(ENTRY.folder / PROGRAM, workspace / PROGRAM)


def _solved(*changes: tuple[str, str]) -> dict[str, str]:
    """The right program with a mistake."""
    text = (ENTRY.folder / "solutions" / PROGRAM).read_text(encoding="utf-8")
    for old, new in changes:
        if old not in text:
            raise LookupError(f"{old!r} is not in the solution")
        text = text.replace(old, new)
    return {PROGRAM: text}


EXERCISE = Exercise(
    entry=ENTRY,
    question="What holds memory at the peak, and does it have to?",
    starter=("README.md", PROGRAM, "memory.py", "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=(PROGRAM,),
    recording=RECORDED,
    mistakes=(
        Mistake("all that was ever allocated", {"peak.mb": 310.0}, "peak mb"),
        Mistake("bytes", {"peak.mb": 88_600_000}, "peak mb"),
        Mistake("the peak of a training step", {"peak.within": "train"}, "peak within"),
        Mistake("the line that allocates", {"peak.line": 51}, "peak line"),
        Mistake("the value that is read at the end", {"peak.line": 83}, "peak line"),
        Mistake("the list with what evaluation adds", {"list.mb": 12.6}, "list mb"),
        Mistake("the line that reads the list", {"list.line": 40}, "list line"),
        Mistake("one moment instead of two", {"state.mb": 1.32}, "state mb"),
        Mistake("what is large must go", {"state.needed": "no"}, "state needed"),
        Mistake("the largest sum instead of the largest block", {"loss.op": "aten::mul"}, "loss op"),
        Mistake("an operator that is not there", {"loss.op": "aten::softmax"}, "loss op"),
        Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
        Mistake("the evaluation keeps its graphs", {}, "peak", _solved((", torch.no_grad()", ""))),
        Mistake(
            "fewer batches are evaluated", {}, "result", _solved(("range(batches)", "range(batches // 2)"))
        ),
        Mistake("the activity left out", {}, "result", _solved(("self.sums += x.detach().sum(0)", "pass"))),
        Mistake("no smoothing", {}, "result", _solved((", label_smoothing=SMOOTHING", ""))),
        Mistake(
            "losses in fewer digits",
            {},
            "result",
            _solved(("(scores, labels,", "(scores.bfloat16(), labels,")),
        ),
        Mistake("half of each batch", {}, "result", _solved(("torch.randn(rows,", "torch.randn(rows // 2,"))),
    ),
    writes="trace.json",
    look="ranges --tree",
)
