# SPDX-License-Identifier: Apache-2.0
"""The tables of a job: by rank, collective, step or line; above them the verdict and what it rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import PurePath
from typing import Any, Literal

from profiling_lab.analysis.critical_path.kinds import GROUPS
from profiling_lab.analysis.ranks.job import JobResult
from profiling_lab.analysis.ranks.joint_path import PathShare
from profiling_lab.analysis.ranks.tables import CollectiveRow, LateOne, RankLineRow, RankStepRow
from profiling_lab.analysis.ranks.totals import RankRow
from profiling_lab.analysis.ranks.verdict import own_ns
from profiling_lab.report import numbers
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.ranks.job_header import clocks_line, job_coverage, job_lines
from profiling_lab.report.ranks.verdict import shown_line, verdict_lines
from profiling_lab.report.table import ALWAYS, FIRST_TO_GO, SPARE, Report, Unit

By = Literal["rank", "collective", "step", "line", "path"]
_LAST_SHOWN = 3


def ranks_report(result: JobResult, by: By, limit: int | None = None) -> Report:
    """The job as a report with a row per rank, collective, step or line.

    Ranks are in order of number; where only some are shown, those that cost or take most come first.
    """
    all_rows, (fields, columns) = _rows(result, by), _TABLES[by]
    if by == "rank" and limit is not None and limit < len(all_rows):
        all_rows = tuple(sorted(all_rows, key=lambda row: (-row.cost_ns, -own_ns(row), row.rank)))
    shown = all_rows[:limit]
    return Report(
        command="ranks",
        trace=_job_data(result, by),
        header=_header(result, by),
        table=table_of(fields, columns, shown, len(all_rows), map(_details, shown)),
        coverage=job_coverage(
            [row.facts for row in result.rows], result.missing, result.failures, result.notes
        ),
        summary=_verdict_data(result),
    )


def _rows(result: JobResult, by: By) -> tuple[Any, ...]:
    tables: dict[By, tuple[Any, ...]] = {
        "rank": result.rows,
        "collective": result.collectives,
        "step": result.steps,
        "line": result.lines,
        "path": result.path.shares if result.path is not None else (),
    }
    return tables[by]


def _header(result: JobResult, by: By) -> tuple[str, ...]:
    facts = [row.facts for row in result.rows]
    lines = [
        *job_lines(
            facts,
            result.files,
            result.world_size,
            result.said_by,
            result.window,
            result.missing,
            result.failures,
        ),
        clocks_line(result.clocks),
    ]
    mean = numbers.time(result.step_ns)
    steps = f"steps: {result.how}; {result.common_steps:,} on all ranks, {mean} on average"
    lines.append(f"  {steps}; times are per step" if by in ("rank", "line", "path") else f"  {steps}")
    lines += [f"  note: {note}" for note in result.notes]
    return (*lines, *verdict_lines(result))


def _details(row: RankRow | CollectiveRow | RankStepRow | RankLineRow | PathShare) -> tuple[str, ...]:
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
    path = result.path
    followed = path and {
        "ranks": list(path.ranks),
        "steps": list(path.steps),
        "step_ns": path.step_ns,
        "plain_step_ns": path.plain_step_ns,
        "transfer_ns": path.transfer_ns,
    }
    return asdict(result.verdict) | {"imbalance": round(result.verdict.imbalance, 6), "path": followed}


def _group(number: int) -> Callable[[Any], int]:
    return lambda row: int(row.group_ns[number])


_RANK = (
    Field("key"),
    Field("rank", "rank", priority=ALWAYS),
    Field("file", value=lambda row: PurePath(row.facts.path).name),
    Field("pid", value="facts.pid"),
    Field("device", value="facts.device"),
    Field("steps"),
    Field("step_ns", "step", Unit.NS, "step", priority=ALWAYS),
    Field("compute_ns", "compute", Unit.NS, "step"),
    Field("exposed_ns", "exposed comm.", Unit.NS, "step"),
    Field("copy_ns", "copy", Unit.NS, "step", priority=FIRST_TO_GO),
    Field("idle_ns", "idle", Unit.NS, "step"),
    Field("communication_ns", "all comm.", Unit.NS, "step", priority=SPARE),
    Field("median_ns"),
    Field("wait_ns", "waiting", Unit.NS, "step"),
    Field("exposed_wait_ns", "of it exposed", Unit.NS, "step", priority=SPARE),
    Field("transfer_ns"),
    Field("compared"),
    Field("late"),
    Field("late_steps"),
    Field("behind_ns", "behind", Unit.NS, cell=lambda row: row.behind_ns if row.late else None),
    Field("cost_ns"),
    Field("missing"),
    Field("late_frac", "last to", Unit.FRAC, digits=None, priority=ALWAYS),
    Field("gpu_ns", value="facts.gpu_ns"),
)
_COLLECTIVE = (
    Field("key"),
    Field("kind", value="series.kind"),
    Field("group", value="series.group"),
    Field("members", value="series.members"),
    Field("numbered_by", value="series.numbered"),
    Field("waits_for_all", value="series.is_together"),
    Field("name", "collective", value=lambda row: str(row.series), for_people_only=True, priority=ALWAYS),
    Field("ranks", "ranks", Unit.COUNT, priority=SPARE),
    Field("occurrences"),
    Field("compared", "compared", Unit.COUNT, priority=SPARE),
    Field("incomplete"),
    Field("apart"),
    Field("wait_ns", "wait", Unit.NS, "collective", priority=ALWAYS),
    Field("transfer_ns", "transfer", Unit.NS, "collective"),
    Field("spread_ns", "first to last", Unit.NS, "collective"),
    Field("last_rank", "last rank", priority=ALWAYS),
    Field("last_frac", "how often", Unit.FRAC, digits=None, priority=ALWAYS),
    Field("size_bytes", "size", Unit.BYTES, priority=SPARE),
    Field("bus_bytes_per_s", "bus GB/s", cell=lambda row: _gb_per_s(row.bus_bytes_per_s)),
    Field("worst", value=lambda row: [asdict(late) for late in row.worst]),
)
_STEP = (
    Field("key"),
    Field("number", "step", priority=ALWAYS),
    Field("ranks", "ranks", Unit.COUNT, priority=FIRST_TO_GO),
    Field("mean_ns", "mean", Unit.NS, "step", priority=ALWAYS),
    Field("most_ns", "slowest", Unit.NS, "step", priority=ALWAYS),
    Field("most_rank", "rank", priority=ALWAYS),
    Field("least_ns", "fastest", Unit.NS, "step"),
    Field("least_rank", "rank"),
    Field("spread_ns", "begin apart", Unit.NS, priority=SPARE),
    Field(
        "imbalance",
        "slowest/mean",
        value=lambda row: round(row.imbalance, 6),
        cell=lambda row: f"{row.imbalance:.3f}",
        priority=ALWAYS,
    ),
)
_LINE = (
    Field("key"),
    Field(
        "kind",
        "time",
        cell=lambda row: f"{row.kind} ({row.cause})" if row.cause else row.kind,
        priority=ALWAYS,
    ),
    Field(
        "line",
        "line",
        cell=lambda row: shown_line(row.line) if row.line else "no line",
        priority=ALWAYS,
        is_path=True,
    ),
    Field("cause"),
    Field("ranks", "ranks", Unit.COUNT, priority=FIRST_TO_GO),
    Field("mean_ns", "mean", Unit.NS, "line"),
    Field("most_ns", "most", Unit.NS, "line", priority=ALWAYS),
    Field("most_rank", "on rank", priority=ALWAYS),
    Field("second_ns"),
    Field("others_ns", "others' mean", Unit.NS, "line"),
    Field("least_ns"),
    Field(
        "alone", cell=lambda row: f"slow on rank {row.most_rank} only" if row.alone else "", priority=ALWAYS
    ),
)
_PATH = (
    Field("key"),
    Field("rank", "rank", priority=ALWAYS),
    Field("line", "line", cell=lambda row: shown_line(row.line), priority=ALWAYS, is_path=True),
    *(
        Field(f"{group}_ns".lower(), group, Unit.NS, "path", value=_group(number))
        for number, group in enumerate(GROUPS)
    ),
    Field("path_ns", "on the path", Unit.NS, "path", priority=ALWAYS),
)
_TABLES: dict[By, tuple[tuple[Field, ...], str]] = {
    "rank": (
        _RANK,
        "rank step_ns compute_ns exposed_ns copy_ns idle_ns communication_ns wait_ns exposed_wait_ns "
        "late_frac behind_ns",
    ),
    "collective": (
        _COLLECTIVE,
        "name ranks compared wait_ns transfer_ns spread_ns last_rank last_frac size_bytes bus_bytes_per_s",
    ),
    "step": (_STEP, "number ranks mean_ns least_ns least_rank most_ns most_rank imbalance spread_ns"),
    "path": (_PATH, "rank line host_ns gpu_ns collectives_ns waits_ns unknown_ns path_ns"),
    "line": (_LINE, "kind line ranks mean_ns most_ns most_rank others_ns alone"),
}


def _gb_per_s(bytes_per_s: float | None) -> str | None:
    return None if bytes_per_s is None else f"{bytes_per_s / 1e9:,.1f}"
