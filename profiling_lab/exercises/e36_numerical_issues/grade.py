# SPDX-License-Identifier: Apache-2.0
"""Grade E36. The right answers come from a run of the exercise's program in both precisions, here and now."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, passed
from profiling_lab.exercises.program_repair import load

ENTRY = entry("numerical-issues")
PROGRAM = "attention.py"
KINDS = (
    "overflow",
    "underflow",
    "cancellation",
    "lost addends",
    "zero by zero",
    "gradient of the other branch",
    "wrong mask",
)
KIND_OF = {
    "offset": "cancellation",
    "scale": "overflow",
    "masked": "zero by zero",
    "long": "lost addends",
    "padded": "gradient of the other branch",
}
WRONG_FRAC = 0.05
"""an error of this part of the largest value is a wrong number, not rounding"""
SLACK_FRAC = 0.15
NEAR_LINES = 2


@dataclass(frozen=True, slots=True)
class Truth:
    """Where the first wrong number of one case arises."""

    lines: tuple[int, ...]
    size: float


@cache
def truth(case: str) -> Truth:
    """Of the exercise's own program, not of the learner's copy."""
    path = ENTRY.folder / PROGRAM
    watch = load(ENTRY.folder / "watch.py", "watch_of_the_exercise")
    inputs = watch.load(path).make_case(case)
    if case == "padded":
        calls = re.findall(rf'{re.escape(PROGRAM)}", line (\d+)', watch.first_nan(path, inputs))
        nan = watch.load(path).with_gradients(inputs)[1]["x"].isnan().sum()
        return Truth((int(calls[-1]),), float(nan))
    rows = watch.rows(path, inputs)
    wrong = [row for row in rows if row.nan or row.inf or row.error > WRONG_FRAC]
    first, earlier = wrong[0], rows[: rows.index(wrong[0])]
    lines = {first.line}
    if case == "long":
        # Both sums of the loop are wrong from the same moment on.
        lines |= {row.line for row in wrong if row.dtype == first.dtype and row.op == first.op}
        return Truth(tuple(sorted(lines)), 100 * max(row.error for row in wrong if row.line == first.line))
    size = first.nan if case == "masked" else earlier[-1].largest
    if case == "offset":
        size = max(row.largest for row in earlier if row.line == first.line)
    return Truth(tuple(lines), float(size))


def findings(_: Path, answers: Answers) -> list[GradedCheck]:
    """For each case the line, the kind and the size, and the explanation."""
    checks: list[GradedCheck] = []
    for case in KIND_OF:
        checks += [_line(case, answers), _kind(case, answers), _size(case, answers)]
    return [*checks, explanation(answers)]


def _line(case: str, answers: Answers) -> GradedCheck:
    check, given, right = f"{case} line", answers.integer(f"{case}.line"), truth(case).lines
    if given is None:
        return failed(check, "not answered yet: the line of attention.py where the first wrong number arises")
    if given in right:
        return passed(check, f"line {given}")
    if case == "padded":
        return failed(check, "the gradients of this line are finite until another line's NaN reaches them")
    if any(given > line for line in right):
        return failed(check, "the numbers were wrong before this line")
    return failed(check, "this line still returns right numbers")


def _kind(case: str, answers: Answers) -> GradedCheck:
    check, given = f"{case} kind", (answers.text(f"{case}.kind") or "").strip().lower()
    if not given:
        return failed(check, "not answered yet: one of the kinds of README.md")
    if given not in KINDS:
        return failed(check, f"{given!r} is not one of the kinds of README.md")
    if given != KIND_OF[case]:
        return failed(check, "something else: which numbers go into this operation, and what comes out?")
    return passed(check, given)


def _size(case: str, answers: Answers) -> GradedCheck:
    check, given, right = f"{case} size", answers.number(f"{case}.size"), truth(case).size
    if given is None:
        return failed(check, "not answered yet: the comment in answer.toml says which number")
    if abs(given - right) <= SLACK_FRAC * right:
        return passed(check, f"{given:g}, recomputed {right:.4g}")
    if abs(100 * given - right) <= SLACK_FRAC * right:
        return failed(check, "write the value in per cent, not as a fraction")
    return failed(check, "another number: the comment in answer.toml says which")


def repair(workspace: Path, _: Answers) -> list[GradedCheck]:
    from profiling_lab.exercises.e36_numerical_issues import repair  # imports torch: only for grading

    return repair.checks(ENTRY.folder / PROGRAM, workspace / PROGRAM)


def _solved(*changes: tuple[str, str]) -> dict[str, str]:
    """The right program with a mistake."""
    text = (ENTRY.folder / "solutions" / PROGRAM).read_text(encoding="utf-8")
    for old, new in changes:
        if old not in text:
            raise LookupError(f"{old!r} is not in the solution")
        text = text.replace(old, new)
    return {PROGRAM: text}


def _mistakes() -> tuple[Mistake, ...]:
    result, gradients, precision = "result", "gradients", "precision"
    make: Callable[..., Mistake] = lambda why, check, *changes: Mistake(why, {}, check, _solved(*changes))  # noqa: E731
    stable = "(scores - largest.masked_fill(largest.isinf(), 0.0)).exp()"
    safe = "    return x / torch.where(squares > 0, squares, 1.0).sqrt()\n"
    last = "return (mixed / total.clamp(min=1.0)).to(q.dtype)"
    return (
        Mistake("where the NaN is seen", {"scale.line": 40}, "scale line"),
        Mistake("where the exponent is made", {"scale.line": 31}, "scale line"),
        Mistake("it is the mask", {"masked.kind": "wrong mask"}, "masked kind"),
        Mistake("where the mask is", {"masked.line": 32}, "masked line"),
        Mistake("the huge quotient", {"offset.line": 19}, "offset line"),
        Mistake("large numbers overflow", {"offset.kind": "overflow"}, "offset kind"),
        Mistake("the quotient at the end of the loop", {"long.line": 40}, "long line"),
        Mistake("a fraction instead of a percentage", {"long.size": 0.16}, "long size"),
        Mistake("where the root is taken", {"padded.line": 25}, "padded line"),
        Mistake("the NaN of the forward pass", {"padded.kind": "zero by zero"}, "padded kind"),
        Mistake("all NaN of all gradients", {"padded.size": 336}, "padded size"),
        Mistake("a kind that does not exist", {"scale.kind": "bug"}, "scale kind"),
        Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
        make("NaN replaced instead of avoided", result, (stable, "scores.exp()"),
             (last, "return (mixed / total).nan_to_num().to(q.dtype)")),
        make("scores cut off", result, (stable, "scores.clamp(max=80).exp()")),
        make("the largest of all rows", result, ("amax(-1, keepdim=True)", "amax()")),
        make("zero by zero replaced in the result", gradients,
             (last, "return (mixed / total).nan_to_num().to(q.dtype)")),
        make("half the digits more", result, ("SUMS = torch.float32", "SUMS = torch.float16")),
        make("everything in float64", precision, ("SUMS = torch.float32", "SUMS = torch.float64")),
        make("the inputs in float64", precision,
             ("    squares = x.square()", "    x = x.double()\n    squares = x.square()"),
             (safe, safe.replace("return ", "return (").rstrip("\n") + ").float()\n")),
        make("the other branch as before", gradients,
             (safe, "    return torch.where(squares > 0, x / squares.sqrt(), torch.zeros_like(x))\n")),
        make("a small number in the root", gradients,
             (safe, "    return x / (squares + 1e-24).sqrt()\n")),
        make("a larger epsilon", result, ("EPSILON = 1e-5", "EPSILON = 1e-1")),
        make("the norm left out", result, ("return normal * weight + bias", "return x * weight + bias")),
        make("no gradient, no NaN", gradients, (safe, safe.rstrip("\n") + ".detach()\n")),
        make("attention left out", result, ("attend(q, k, v, allowed, scale)", "torch.zeros_like(x)")),
    )  # fmt: skip


EXERCISE = Exercise(
    entry=ENTRY,
    question="Where does a wrong number begin?",
    starter=("README.md", PROGRAM, "watch.py", "answer.toml"),
    findings=findings,
    repair=repair,
    program=(PROGRAM,),
    recording="",
    mistakes=_mistakes(),
)
