# SPDX-License-Identifier: Apache-2.0
"""What is said of a job in words: who holds it up, with what, and what mending that would win."""

from __future__ import annotations

import re

from profiling_lab.analysis.critical_path.kinds import KINDS, Kind
from profiling_lab.analysis.ranks.blame import SLOW_GPU, SLOW_HOST, Blame
from profiling_lab.analysis.ranks.job import JobResult
from profiling_lab.report import numbers
from profiling_lab.report.paths import shown_path

_LAST_SHOWN, _ALSO_SHOWN = 3, 2
_PLACE = re.compile(r"(?P<file>[^ ]+):(?P<line>\d+)")
_NAME_WIDTH = 48
_ALWAYS_FRAC = 0.9
"""of the collectives, from which on a rank is last to nearly all"""


def verdict_lines(result: JobResult) -> tuple[str, ...]:
    """Lines for people; indented ones belong to the line above them."""
    found = result.verdict
    cost = f"{numbers.time(found.cost_ns)} per step, {numbers.share(_of_step(result))} of it"
    balance = f"  compute: the most loaded rank has {found.imbalance:.2f} times the mean"
    if found.kind == "straggler" and found.blame is not None:
        return (*_blamed(result, found.blame, cost), *_others(found.also), balance)
    if found.kind == "straggler":
        first = f"rank {found.rank} is a straggler: {_late(result)}; being in time would save {cost}"
    elif found.kind == "transfer":
        first = f"no straggler: transfers hold the step up; if they took no time it would save {cost}"
    elif found.kind == "waiting":
        often = sorted(result.rows, key=lambda row: (-row.late, row.rank))
        last = ", ".join(
            f"rank {row.rank} {numbers.share(row.late_frac or 0)}" for row in often[:_LAST_SHOWN]
        )
        first = f"no straggler, but ranks wait for each other: {cost}, on average; last: {last}"
        if result.path is not None and (often[0].late_frac or 0.0) >= _ALWAYS_FRAC:
            none = f"nothing that rank {often[0].rank} does takes longer than on the others"
            return (first, f"  {none}: the recordings do not say why it is late", balance)
    elif found.kind == "uneven":
        first = (
            f"rank {found.rank} takes {cost}, longer than the others outside of communication: "
            "it will come last to what they share"
        )
    elif found.kind == "balanced" and not found.by_durations:
        first = f"no straggler: ranks wait for each other {cost}, on average"
    elif found.kind == "balanced":
        first = "no rank takes noticeably longer than the others; no collective could be compared"
    elif result.path is not None and result.path.unseen_ns:
        first = "cannot tell: what ranks do in their CUDA graphs was not recorded"
    else:
        first = "cannot tell: fewer than two ranks have steps to compare"
    return (first, *_excess(result), balance)


def _blamed(result: JobResult, blame: Blame, cost: str) -> tuple[str, ...]:
    where = f" at {shown_line(blame.line)}" if blame.line else f" in {_short(blame.name)}"
    where = where if blame.line or blame.name else ""
    where = where.replace(" at between", " between")
    first = f"rank {blame.rank} is a straggler, {_cause(blame)}{where}: {_mended(blame)} would save {cost}"
    lines = [first]
    if blame.cause == SLOW_GPU:
        lines.append(f"  its kernels take {blame.slower:.2f} times as long for the same work")
    elif blame.doing == KINDS[Kind.WAIT]:
        lines.append("  its host waits for the GPU there, which the others do not")
    elif blame.line or blame.name:
        took, others = numbers.time(blame.line_ns), numbers.time(blame.others_ns)
        doing = f", mostly {_doing(blame)}" if blame.doing else ""
        lines.append(f"  that takes {took} per step there, {others} on the other ranks{doing}")
    else:
        lines.append("  no single line accounts for half of it")
    if any(row.rank == blame.rank and row.late for row in result.rows):
        lines.append(f"  it is {_late(result)}")
    return tuple(lines)


def _short(kernel: str) -> str:
    """Without arguments and types."""
    name = kernel.partition("(")[0].partition("<")[0].rpartition(" ")[2]
    return name if len(name) <= _NAME_WIDTH else f"{name[:_NAME_WIDTH]}.."


def _cause(blame: Blame) -> str:
    return f"by a {blame.cause}" if blame.cause in (SLOW_GPU, SLOW_HOST) else f"by {blame.cause}"


def _mended(blame: Blame) -> str:
    return "as on the other ranks it" if blame.line or blame.name else "as fast as the others it"


def _doing(blame: Blame) -> str:
    return f"{blame.doing} before it" if blame.doing == KINDS[Kind.DATA_LOADING] else blame.doing


def _others(also: tuple[Blame, ...]) -> tuple[str, ...]:
    return tuple(
        f"  rank {blame.rank} holds the step up as well, {_cause(blame)}"
        f"{f' at {shown_line(blame.line)}'.replace(' at between', ' between') if blame.line else ''}: "
        f"mended {_with(blame)} it would save {numbers.time(blame.gain_ns)}"
        for blame in also[:_ALSO_SHOWN]
    )


def _with(blame: Blame) -> str:
    return "alone" if blame.behind is None else f"after rank {blame.behind}"


def _late(result: JobResult) -> str:
    row = next(row for row in result.rows if row.rank == result.verdict.rank)
    return (
        f"last to {numbers.share(row.late_frac or 0)} of {numbers.counted(row.compared, 'collective')}, in "
        f"{row.late_steps:,} of {numbers.counted(row.facts.steps, 'step')}, {numbers.time(row.behind_ns)} "
        "behind the others on the median"
    )


def _of_step(result: JobResult) -> float:
    return result.verdict.cost_ns / result.step_ns if result.step_ns else 0.0


def _excess(result: JobResult) -> tuple[str, ...]:
    more = result.verdict.excess
    if more is None:
        return ()
    if 2 * more.part_ns < result.verdict.cost_ns:
        return ("  nothing in its own steps takes as much longer: the recordings do not say why it is late",)
    part = {"compute": "computes", "copy": "copies", "idle": "idles"}[more.part]
    text = f"  it {part} {numbers.time(more.part_ns)} per step more than the others"
    if not more.line:
        return (f"{text}; no single line accounts for half of that",)
    cause = f" ({more.cause})" if more.cause else ""
    return (f"{text}; {shown_line(more.line)} accounts for {numbers.time(more.line_ns)}{cause}",)


def shown_line(line: str) -> str:
    """With paths as people read them; also a text with lines in it, such as `between a.py:1 and a.py:2`."""
    return _PLACE.sub(lambda found: f"{shown_path(found['file'])}:{found['line']}", line)
