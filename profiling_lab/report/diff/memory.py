# SPDX-License-Identifier: Apache-2.0
"""`diff --memory`: both peaks, how their kinds changed, and what each line held before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from profiling_lab.analysis.diff.memory import MemoryDiff, MemoryRow
from profiling_lab.analysis.memory.devices import Place
from profiling_lab.analysis.memory.held import PeakMemory
from profiling_lab.records import replace
from profiling_lab.report import numbers
from profiling_lab.report.diff.text import limit_line, peaks_text, signed_size
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.memory import LINE_FIELDS, where
from profiling_lab.report.paths import shown_path
from profiling_lab.report.table import ALWAYS, Report, Unit

_COLUMNS = "where phase kind before_bytes after_bytes change_bytes"


def memory_diff_report(result: MemoryDiff, limit: int | None = None) -> Report:
    """`limit`: the most rows, the others summed in one."""
    shown = result.rows[:limit]
    others = result.rows[len(shown) :]
    sums = [_sum(numbers.counted(len(others), "other row"), others)] if others else []
    sums.append(_sum("the peak", result.rows))
    table = table_of(_fields(result), _COLUMNS, (*shown, *sums), len(result.rows))
    return Report(
        command="diff",
        trace={side: [each.path for each in held] for side, held in _sides(result)},
        header=tuple(_header(result)),
        # Sums are for people: programs can add up the rows.
        table=replace(table, data=(table.data or ())[: len(shown)]),
        coverage={},
        summary=memory_data(result),
    )


def memory_data(result: MemoryDiff) -> dict[str, Any]:
    """The peaks for machines."""
    return {
        "before_bytes": result.before_bytes,
        "after_bytes": result.after_bytes,
        "change_bytes": result.change_bytes,
        "is_exact": result.is_exact,
        "gate": asdict(result.gate) if result.gate else None,
        "peaks": {side: [list(each.peaks) for each in held] for side, held in _sides(result)},
    }


def _sides(result: MemoryDiff) -> tuple[tuple[str, tuple[PeakMemory, ...]], ...]:
    return ("before", result.before), ("after", result.after)


def _fields(result: MemoryDiff) -> tuple[Field, ...]:
    by_function = result.by == "function"
    return (
        Field("key"),
        Field("where", result.by, cell=lambda row: _where(row, by_function), priority=ALWAYS,
              value=lambda row: _where(row, by_function), is_path=True, for_people_only=True),
        Field("kind", "kind", priority=ALWAYS),
        Field("before_bytes", "before", Unit.BYTES, priority=ALWAYS),
        Field("after_bytes", "after", Unit.BYTES, priority=ALWAYS),
        Field("change_bytes", "change", Unit.BYTES, priority=ALWAYS),
        *(field for field in LINE_FIELDS if not (by_function and field.key == "line")),
        *(() if by_function else (Field("line_before"),)),
    )  # fmt: skip


def _where(row: MemoryRow, by_function: bool) -> str:
    frame = row.place.frame
    if not row.key:
        return row.place.reason
    if frame is None or not by_function:
        moved = f" (was line {row.line_before})" if row.line_before else ""
        return f"{where(row.place)}{moved}"
    text = f"{frame.function} ({shown_path(frame.file)})"
    return f"backward of {text}" if row.place.is_linked else text


def _sum(name: str, rows: Sequence[MemoryRow]) -> MemoryRow:
    before, after = sum(row.before_bytes for row in rows), sum(row.after_bytes for row in rows)
    return MemoryRow("", Place(None, "", name), 0, "", before, after)


def _header(result: MemoryDiff) -> list[str]:
    lines = [f"peak memory {peaks_text(result.before_bytes, result.after_bytes)}"]
    kinds: dict[str, int] = {}
    for row in result.rows:
        kinds[row.kind] = kinds.get(row.kind, 0) + row.change_bytes
    changed = sorted((item for item in kinds.items() if item[1]), key=lambda item: (-abs(item[1]), item[0]))
    if changed:
        lines.append(f"  {', '.join(f'{signed_size(change)} {kind}' for kind, change in changed)}")
    if result.gate:
        lines.append(limit_line("gate-memory", result.gate))
    for side, held in _sides(result):
        lines += _side(side, held)
    if not result.is_exact:
        lines.append("  note: a history is not complete, so its peak may have been higher")
    return lines


def _side(side: str, held: tuple[PeakMemory, ...]) -> list[str]:
    first = held[0]
    gpus = ""
    if len(first.peaks) > 1:
        gpus = f", the sum of {len(first.peaks)} GPUs, the fullest {numbers.size(max(first.peaks))}"
    lines = [f"{side}: {PurePath(first.path).name}: {first.peak_bytes:,} bytes{gpus}"]
    if len(held) > 1:
        lines.append(f"  the highest of {len(held)} recordings; the lowest has {held[-1].peak_bytes:,} bytes")
    return lines
