# SPDX-License-Identifier: Apache-2.0
"""The tables of a job: by rank, collective, step or line; above them the verdict and what it rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import PurePath
from typing import Any, Literal

from profiling_lab.analysis.ranks.job import JobResult
from profiling_lab.analysis.ranks.tables import CollectiveRow, LateOne, LineRow, StepRow
from profiling_lab.analysis.ranks.totals import RankRow
from profiling_lab.analysis.ranks.verdict import own_ns
from profiling_lab.report import numbers
from profiling_lab.report.lines import shown_path
from profiling_lab.report.table import Column, Report, Table, Unit, Value

By = Literal["rank", "collective", "step", "line"]
_LISTED = 16
_LAST_SHOWN = 3

_RANK_COLUMNS = (
    Column("rank", "rank"),
    Column("step_ns", "step", Unit.NS, "step"),
    Column("compute_ns", "compute", Unit.NS, "step"),
    Column("exposed_ns", "exposed comm.", Unit.NS, "step"),
    Column("copy_ns", "copy", Unit.NS, "step"),
    Column("idle_ns", "idle", Unit.NS, "step"),
    Column("communication_ns", "all comm.", Unit.NS, "step"),
    Column("wait_ns", "waiting", Unit.NS, "step"),
    Column("exposed_wait_ns", "of it exposed", Unit.NS, "step"),
    Column("late_frac", "last to", Unit.FRAC),
    Column("behind_ns", "behind", Unit.NS),
)
_COLLECTIVE_COLUMNS = (
    Column("name", "collective"),
    Column("ranks", "ranks", Unit.COUNT),
    Column("compared", "compared", Unit.COUNT),
    Column("wait_ns", "wait", Unit.NS, "collective"),
    Column("transfer_ns", "transfer", Unit.NS, "collective"),
    Column("spread_ns", "first to last", Unit.NS, "collective"),
    Column("last_rank", "last rank"),
    Column("last_frac", "how often", Unit.FRAC),
    Column("size_bytes", "size", Unit.BYTES),
    Column("bus_gb_per_s", "bus GB/s"),
)
_STEP_COLUMNS = (
    Column("number", "step"),
    Column("ranks", "ranks", Unit.COUNT),
    Column("mean_ns", "mean", Unit.NS, "step"),
    Column("least_ns", "fastest", Unit.NS, "step"),
    Column("least_rank", "rank"),
    Column("most_ns", "slowest", Unit.NS, "step"),
    Column("most_rank", "rank"),
    Column("imbalance", "slowest/mean"),
    Column("spread_ns", "begin apart", Unit.NS),
)
_LINE_COLUMNS = (
    Column("kind", "time"),
    Column("line", "line"),
    Column("ranks", "ranks", Unit.COUNT),
    Column("mean_ns", "mean", Unit.NS, "line"),
    Column("most_ns", "most", Unit.NS, "line"),
    Column("most_rank", "on rank"),
    Column("others_ns", "others' mean", Unit.NS, "line"),
    Column("found", ""),
)


def ranks_report(result: JobResult, by: By, limit: int | None = None) -> Report:
    """The job as a report with a row per rank, collective, step or line.

    Ranks stand in their order, but where only some are shown those come first that cost or take most.
    """
    columns, all_rows = _TABLES[by][0], _rows(result, by)
    if by == "rank" and limit is not None and limit < len(all_rows):
        all_rows = tuple(sorted(all_rows, key=lambda row: (-row.cost_ns, -own_ns(row), row.rank)))
    value: Callable[[Any, str], Value] = _TABLES[by][1]
    shown = all_rows[:limit]
    return Report(
        command="ranks",
        trace=_job_data(result, by),
        header=_header(result, by),
        table=Table(
            columns,
            tuple(tuple(value(row, column.name) for column in columns) for row in shown),
            len(all_rows),
            tuple(map(_details, shown)),
            tuple(map(_data, shown)),
        ),
        coverage={
            "gpu_ns": sum(row.facts.gpu_ns for row in result.rows),
            "attributed_ns": sum(row.facts.attributed_ns for row in result.rows),
            "operations": sum(row.facts.operations for row in result.rows),
            "ranks": len(result.rows),
            "missing_ranks": list(result.missing),
            "unreadable": [asdict(failure) for failure in result.failures],
            "notes": list(result.notes),
        },
        summary=_verdict_data(result),
    )


def _rows(result: JobResult, by: By) -> tuple[Any, ...]:
    tables: dict[By, tuple[Any, ...]] = {
        "rank": result.rows,
        "collective": result.collectives,
        "step": result.steps,
        "line": result.lines,
    }
    return tables[by]


def _header(result: JobResult, by: By) -> tuple[str, ...]:
    gpu_ns = sum(row.facts.gpu_ns for row in result.rows)
    operations = sum(row.facts.operations for row in result.rows)
    attributed = sum(row.facts.attributed_ns for row in result.rows)
    counted = numbers.counted(len(result.rows), "rank")
    of = f" of {result.world_size}" if result.world_size not in (None, len(result.rows)) else ""
    lines = [
        f"{counted}{of} in {numbers.counted(result.files, 'file')}: {numbers.time(gpu_ns)} of GPU time in "
        f"{numbers.counted(operations, 'operation')}, summed",
        f"  {result.said_by}",
        f"  {numbers.share(attributed / gpu_ns if gpu_ns else 0.0)} of it has a line of your code",
    ]
    if result.window:
        asked = ", ".join(f"--{name} {value}" for name, value in result.window)
        lines.append(f"  window: {asked}, of each recording")
    if result.missing:
        lines.append(f"  missing: rank {_listed(result.missing)}")
    lines += [f"  left out: {failure.sentence}" for failure in result.failures]
    lines.append(f"  clocks: {_clocks(result)}")
    mean = numbers.time(result.step_ns)
    steps = f"steps: {result.how}; {result.common_steps:,} on all ranks, {mean} on average"
    lines.append(f"  {steps}; times are per step" if by in ("rank", "line") else f"  {steps}")
    lines += [f"  note: {note}" for note in result.notes]
    return (*lines, *_verdict(result))


def _listed(values: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, values[:_LISTED]))
    return f"{shown} and {len(values) - _LISTED} more" if len(values) > _LISTED else shown


def _clocks(result: JobResult) -> str:
    clocks = result.clocks
    accuracy = "" if clocks.accuracy_ns is None else f", ± {numbers.time(clocks.accuracy_ns)}"
    if clocks.own:
        alone = numbers.counted(clocks.own, "rank")
        accuracy += f"; {alone} with too few collectives in common, each left with its own clock"
    return {
        "one": f"one file, one clock{accuracy}",
        "collectives": f"moved by up to {numbers.time(clocks.moved_ns)} so that ranks leave collectives "
        f"together{accuracy}",
        "wall": "as the machines had them: no collective that all share to check them by",
        "none": "cannot be compared: the files do not tie them to the calendar and share too few "
        "collectives; each rank is judged by its own durations",
    }[clocks.state]


def _verdict(result: JobResult) -> tuple[str, ...]:
    found = result.verdict
    cost = f"{numbers.time(found.cost_ns)} per step, {numbers.share(_of_step(result))} of it"
    balance = f"compute: the most loaded rank has {found.imbalance:.2f} times the mean"
    if found.kind == "straggler":
        row = next(row for row in result.rows if row.rank == found.rank)
        first = (
            f"rank {found.rank} is a straggler: last to {numbers.share(row.late_frac or 0)} of "
            f"{numbers.counted(row.compared, 'collective')}, in {row.late_steps:,} of "
            f"{numbers.counted(row.facts.steps, 'step')}, {numbers.time(row.behind_ns)} behind the others on "
            f"the median; being in time would save {cost}"
        )
    elif found.kind == "waiting":
        often = sorted(result.rows, key=lambda row: (-row.late, row.rank))[:_LAST_SHOWN]
        last = ", ".join(f"rank {row.rank} {numbers.share(row.late_frac or 0)}" for row in often)
        first = f"no straggler, but ranks wait for each other: {cost}, on average; last: {last}"
    elif found.kind == "uneven":
        first = (
            f"rank {found.rank} takes {cost}, longer than the others outside of communication: "
            "it will come last to what they share"
        )
    elif found.kind == "balanced" and not found.by_durations:
        first = f"no straggler: ranks wait for each other {cost}, on average"
    elif found.kind == "balanced":
        first = "no rank takes noticeably longer than the others; no collective could be compared"
    else:
        first = "cannot tell: fewer than two ranks have steps to compare"
    return (first, *_excess(result), f"  {balance}")


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
    return (f"{text}; {_shown(more.line)} accounts for {numbers.time(more.line_ns)}{cause}",)


def _shown(line: str) -> str:
    file, _, number = line.rpartition(":")
    return f"{shown_path(file)}:{number}" if file else line


def _rank_value(row: RankRow, name: str) -> Value:
    value: Value = getattr(row, name)
    if name == "behind_ns":
        return value if row.late else None
    return str(value) if name == "rank" else value


def _collective_value(row: CollectiveRow, name: str) -> Value:
    if name == "name":
        return str(row.series)
    if name == "bus_gb_per_s":
        return None if row.bus_bytes_per_s is None else f"{row.bus_bytes_per_s / 1e9:,.1f}"
    value: Value = getattr(row, name)
    return value if name != "last_rank" or value is None else str(value)


def _step_value(row: StepRow, name: str) -> Value:
    if name == "imbalance":
        return f"{row.imbalance:.3f}"
    value: Value = getattr(row, name)
    return str(value) if name in ("number", "least_rank", "most_rank") else value


def _line_value(row: LineRow, name: str) -> Value:
    if name == "kind":
        return f"{row.kind} ({row.cause})" if row.cause else row.kind
    if name == "line":
        return _shown(row.line) if row.line else "no line"
    if name == "found":
        return f"slow on rank {row.most_rank} only" if row.alone else ""
    value: Value = getattr(row, name)
    return str(value) if name == "most_rank" else value


_TABLES: dict[By, tuple[tuple[Column, ...], Callable[[Any, str], Value]]] = {
    "rank": (_RANK_COLUMNS, _rank_value),
    "collective": (_COLLECTIVE_COLUMNS, _collective_value),
    "step": (_STEP_COLUMNS, _step_value),
    "line": (_LINE_COLUMNS, _line_value),
}


def _details(row: RankRow | CollectiveRow | StepRow | LineRow) -> tuple[str, ...]:
    if not isinstance(row, CollectiveRow):
        return ()
    out = [f"{_which(late)}: rank {late.rank} {numbers.time(late.behind_ns)} behind" for late in row.worst]
    if row.incomplete:
        out.append(f"{row.incomplete:,} are not on every rank of the group and are not compared")
    if row.apart:
        out.append(
            f"{row.apart:,} were over on one rank before they began on another: not one collective, and not "
            "compared"
        )
    if not row.series.is_together:
        out.append("ranks need not wait for each other here: not compared")
    return tuple(out)


def _which(late: LateOne) -> str:
    return f"number {late.number}" if late.step is None else f"step {late.step}, number {late.number}"


def _data(row: RankRow | CollectiveRow | StepRow | LineRow) -> dict[str, Any]:
    if isinstance(row, RankRow):
        own = {name: getattr(row, name) for name in RankRow.__slots__ if name not in ("facts", "rank")}
        facts = row.facts
        return {
            "key": row.key,
            "rank": row.rank,
            "file": PurePath(facts.path).name,
            "pid": facts.pid,
            "device": facts.device,
            **own,
            "late_frac": row.late_frac,
            "gpu_ns": facts.gpu_ns,
        }
    if isinstance(row, CollectiveRow):
        own = {
            name: getattr(row, name) for name in CollectiveRow.__slots__ if name not in ("series", "worst")
        }
        series = {"kind": row.series.kind, "group": row.series.group, "members": list(row.series.members)}
        numbered = {"numbered_by": row.series.numbered, "waits_for_all": row.series.is_together}
        return {"key": row.key} | series | numbered | own | {"worst": [asdict(late) for late in row.worst]}
    if isinstance(row, StepRow):
        return {"key": row.key} | asdict(row) | {"imbalance": round(row.imbalance, 6)}
    return {"key": row.key} | asdict(row)


def _job_data(result: JobResult, by: By) -> dict[str, Any]:
    return {
        "files": result.files,
        "by": by,
        "window": dict(result.window) or None,
        "world_size": result.world_size,
        "ranks_said_by": result.said_by,
        "steps_by": result.how,
        "common_steps": result.common_steps,
        "step_ns": result.step_ns,
        "clocks": asdict(result.clocks),
    }


def _verdict_data(result: JobResult) -> dict[str, Any]:
    return asdict(result.verdict) | {"imbalance": round(result.verdict.imbalance, 6)}
