# SPDX-License-Identifier: Apache-2.0
"""What a change did: the verdict, the limits, and the table of what each line took before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from profiling_lab.analysis.diff.diff import DiffResult, DiffRow, PartChange
from profiling_lab.analysis.diff.measure import Capture, Origin
from profiling_lab.analysis.diff.noise import Interval
from profiling_lab.records import replace
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_lines
from profiling_lab.report.diff.data import summary
from profiling_lab.report.diff.text import (
    CHECK_NAMES,
    interval_text,
    limit_line,
    peaks_text,
    share_of,
    signed_time,
    step_lines,
    unit_of,
    verdict,
)
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.paths import shown_path
from profiling_lab.report.table import ALWAYS, FIRST_TO_GO, SPARE, Report, Unit

_SPECIAL = {
    "idle": "GPU idle",
    "twice": "overlapping, counted once",
    "rest": "left over: medians of parts do not add up",
}
_MANY_ROWS = 20
"""from here on one row is expected outside of its interval by chance"""
_UNSAID = ("small", "equal", "undecided")
"""states that say nothing more than the numbers of the row"""


def diff_report(
    result: DiffResult,
    limit: int | None = None,
    parts: int = 2,
    about: Sequence[str] = (),
    every_capture: bool = True,
) -> Report:
    """`limit`: the most rows, the others summed in one; `parts`: kernels or causes under each; `about`: lines
    about what was compared. Without `every_capture` the header tells the coverage of one recording a side.
    """
    shown = result.rows[:limit]
    if len(result.rows) - len(shown) < 3:  # what is left would take as many lines as its sum
        shown = result.rows
    sums = _sums(result, result.rows[len(shown) :])
    details = (*(_details(row, parts) for row in shown), *(() for _ in sums))
    table = table_of(_fields(result), _COLUMNS, (*shown, *sums), len(result.rows), details)
    return Report(
        command="diff",
        trace={
            "before": [_named(capture) for capture in result.captures_before],
            "after": [_named(capture) for capture in result.captures_after],
        },
        header=_header(result, about, every_capture),
        # Sums are for people: programs can add up the rows.
        table=replace(table, data=(table.data or ())[: len(shown)]),
        coverage={
            side: [_coverage(capture.origin) for capture in captures]
            for side, captures in (("before", result.captures_before), ("after", result.captures_after))
        },
        summary=summary(result),
    )


_COLUMNS = "key phase before_ns after_ns change_ns interval before_frac after_frac state"


def _fields(result: DiffResult) -> tuple[Field, ...]:
    has_source = any(capture.source for capture in (*result.captures_before, *result.captures_after))
    return (
        Field("key", "median", cell=place, priority=ALWAYS, is_path=True),
        Field("kind"),
        Field("file"),
        Field("function"),
        Field("line"),
        Field("line_before"),
        Field("phase", "phase", priority=ALWAYS),
        Field("before_ns", "before", Unit.NS, "step"),
        Field("after_ns", "after", Unit.NS, "step", priority=ALWAYS),
        Field("change_ns", "change", Unit.NS, "step", priority=ALWAYS),
        Field(
            "interval",
            "95 % interval",
            value=lambda r: interval_text(r.interval),
            for_people_only=True,
            priority=SPARE,
        ),
        Field("low_ns", value="interval.low_ns"),
        Field("high_ns", value="interval.high_ns"),
        Field(
            "before_frac",
            "of it before",
            Unit.FRAC,
            value=lambda r: share_of(r.before_ns, result.before),
            priority=FIRST_TO_GO,
        ),
        Field(
            "after_frac",
            "after",
            Unit.FRAC,
            value=lambda r: share_of(r.after_ns, result.after),
            priority=ALWAYS,
        ),
        Field("state", "", cell=lambda row: "" if row.state in _UNSAID else row.state, priority=ALWAYS),
        Field("parts", value=lambda row: [asdict(part) for part in row.parts]),
        *((Field("source"), Field("source_before")) if has_source else ()),
    )


def _sums(result: DiffResult, others: tuple[DiffRow, ...]) -> tuple[DiffRow, ...]:
    """The rows that are not shown as one, and the whole step."""
    devices = max(capture.devices for capture in (*result.captures_before, *result.captures_after))
    total = f"the median {unit_of(result)}" + (f" on {devices} devices" if devices > 1 else "")
    times = (result.before.whole_ns, result.after.whole_ns)
    whole = _sum(total, *times, result.interval if devices == 1 else None)
    if not others:
        return (whole,)
    name = numbers.counted(len(others), "other row")
    return (_sum(name, sum(r.before_ns for r in others), sum(r.after_ns for r in others), None), whole)


def _sum(name: str, before_ns: int, after_ns: int, interval: Interval | None) -> DiffRow:
    return DiffRow("", "kernel", "", name, 0, "", 0, before_ns, after_ns, interval, "equal", ())


def _coverage(origin: Origin) -> dict[str, Any]:
    return coverage_data(origin.coverage) | {"window": {"text": origin.window} if origin.window else None}


def _named(capture: Capture) -> str:
    return capture.origin.saved or capture.origin.path


def _header(result: DiffResult, about: Sequence[str], every_capture: bool) -> tuple[str, ...]:
    lines = [verdict(result), *step_lines(result), *(f"  {line}" for line in about)]
    if found := result.memory:
        whole = "" if found.is_exact else "; a history is not complete, so a peak may have been higher"
        lines.append(
            f"  peak memory {peaks_text(found.before_bytes, found.after_bytes)}{whole}; --memory: by line"
        )
    if result.comparable:
        lines += [limit_line(what, limit) for what, limit in result.limits]
    judged = [row for row in result.rows if row.interval is not None]
    if len(judged) >= _MANY_ROWS and any(row.state in ("faster", "slower") for row in judged):
        lines.append(
            f"  note: each of {len(judged)} rows has its own interval: of 20 that did not change, 1 seems to"
        )
    for check in result.checks:
        if check.state == "allowed":
            lines.append(
                f"  note: {CHECK_NAMES[check.name]}: {check.before} before, {check.after} after; allowed"
            )
    if unknown := [CHECK_NAMES[check.name] for check in result.checks if check.state == "unknown"]:
        lines.append(f"  note: not told by the files, so not compared: {', '.join(unknown)}")
    for side, captures in (("before", result.captures_before), ("after", result.captures_after)):
        worst = min(captures, key=lambda capture: capture.origin.coverage.attributed_frac)
        for capture in captures if every_capture else (worst,):
            origin = capture.origin
            name = PurePath(origin.path).name + (f" in {PurePath(origin.saved).name}" if origin.saved else "")
            name += "" if every_capture or len(captures) == 1 else f", of {len(captures)} the least covered"
            first, *rest = coverage_lines(name, origin.coverage)
            rest = [f"window: {origin.window}", *rest] if origin.window else rest
            lines += [f"{side}: {first}", *(f"  {line.strip()}" for line in rest)]
    return tuple(lines)


def place(row: DiffRow) -> str:
    """What a row is, as people read it."""
    if row.kind in _SPECIAL:
        return _SPECIAL[row.kind]
    if row.kind in ("kernel", "operator"):
        return row.function
    if row.kind == "function":
        return f"{row.function} ({shown_path(row.file)})"
    number = row.line or row.line_before
    moved = f" (was {row.line_before})" if row.line_before and row.line else ""
    return f"{shown_path(row.file)}:{number}{moved} {row.function}".rstrip()


def _details(row: DiffRow, parts: int) -> tuple[str, ...]:
    """The kernels, or the causes of idle time, that explain the row."""
    changed = [part for part in row.parts if part.before_ns != part.after_ns]
    if row.state in ("small", "equal") or not changed or not parts:
        return ()
    lines = [f"source: {row.source}"] if row.source else []
    lines += [f"source before: {row.source_before}"] if row.source_before not in ("", row.source) else []
    lines += [f"{signed_time(p.after_ns - p.before_ns)} {_part(p)}{_fate(p)}" for p in changed[:parts]]
    if len(changed) > parts:
        noun = "more cause" if row.kind == "idle" else "more kernel"
        lines.append(f"and {numbers.counted(len(changed) - parts, noun)}")
    return tuple(lines)


def _part(part: PartChange) -> str:
    if not part.file:
        return _shortened(part.name)
    at = "" if part.name.endswith("before") else "at "  # the host was there, or on its way
    return f"{part.name} {at}{shown_path(part.file)}:{part.line}"


def _shortened(name: str) -> str:
    """Names of matrix kernels are long, and all alike in the middle."""
    return name if len(name) <= 64 else f"{name[:44]}...{name[-16:]}"


def _fate(part: PartChange) -> str:
    return " (new)" if not part.before_ns else " (removed)" if not part.after_ns else ""
