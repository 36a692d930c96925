# SPDX-License-Identifier: Apache-2.0
"""The tables of idle time: by cause, or gap by gap."""

from __future__ import annotations

from profiling_lab.analysis.gaps.gaps import GapsResult
from profiling_lab.analysis.gaps.longest import Gap, GapList, GapPart
from profiling_lab.analysis.gaps.rows import GapRow
from profiling_lab.analysis.steps import PARTS
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.lines import frame_data, shown_place
from profiling_lab.report.table import Column, Report, Table, Unit
from profiling_lab.trace import Frame, Trace

_PLACES_SHOWN = 2
_PARTS_SHOWN = 6


def gaps_report(trace: Trace, result: GapsResult) -> Report:
    """Rows of `gaps` as a report; without steps there is no column per step."""
    per_step = (Column("per_step_ns", "per step", Unit.NS, "step"),) if result.steps else ()
    columns = (
        Column("cause", "cause"),
        Column("line", "line"),
        Column("what", "in"),
        *per_step,
        Column("idle_ns", "idle", Unit.NS),
        Column("share_frac", "of idle", Unit.FRAC),
        Column("pieces", "pieces", Unit.COUNT),
    )
    rows = tuple(
        (
            row.cause,
            _line(row),
            row.what,
            *((row.per_step_ns,) if result.steps else ()),
            row.idle_ns,
            row.share_frac,
            row.pieces,
        )
        for row in result.rows
    )
    details, data = tuple(map(_details, result.rows)), tuple(map(_data, result.rows))
    return _report(trace, result, Table(columns, rows, result.total_matched, details, data))


def gap_list_report(trace: Trace, result: GapsResult, listed: GapList) -> Report:
    """The longest gaps one by one, under the header of `gaps`."""
    several = len({(gap.pid, gap.device) for gap in listed.gaps}) > 1
    columns = (
        *((Column("pid", "process"), Column("device", "GPU")) if several else ()),
        Column("start_ns", "at", Unit.NS, "at"),
        Column("idle_ns", "idle", Unit.NS),
        Column("cause", "mostly"),
        Column("line", "line"),
        Column("what", "in"),
        Column("until", "until"),
    )
    rows = tuple(
        (
            *((str(gap.pid), str(gap.device)) if several else ()),
            gap.start_ns,
            gap.idle_ns,
            gap.main.cause,
            _line(gap.main),
            gap.main.what,
            shown_place(gap.until) if gap.until else "",
        )
        for gap in listed.gaps
    )
    details, data = tuple(map(_part_lines, listed.gaps)), tuple(map(_gap_data, listed.gaps))
    return _report(trace, result, Table(columns, rows, listed.total_matched, details, data))


def _report(trace: Trace, result: GapsResult, table: Table) -> Report:
    return Report(
        command="gaps",
        trace=_trace_data(trace, result),
        header=(*coverage_header(trace, result.coverage), *_header(result)),
        table=table,
        coverage=coverage_data(result.coverage),
    )


def _part_lines(gap: Gap) -> tuple[str, ...]:
    """The parts of a gap that has several: the longest of them, in order of time."""
    if len(gap.parts) == 1:
        return ()
    by_length = sorted(range(len(gap.parts)), key=lambda i: -gap.parts[i].idle_ns)
    lines = []
    for i in sorted(by_length[:_PARTS_SHOWN]):
        part = gap.parts[i]
        lines.append(" ".join(filter(None, (numbers.time(part.idle_ns), part.cause, part.what, _line(part)))))
    shorter = len(gap.parts) - len(lines)
    return (*lines, *((f"and {numbers.counted(shorter, 'shorter part')}",) if shorter else ()))


def _gap_data(gap: Gap) -> dict[str, object]:
    return {
        "key": gap.key,
        "pid": gap.pid,
        "device": gap.device,
        "start_ns": gap.start_ns,
        "idle_ns": gap.idle_ns,
        "cause": gap.main.cause,
        "until": None if gap.until is None else frame_data(gap.until),
        "parts": [
            {
                "cause": part.cause,
                "what": part.what,
                **frame_data(part.frame or Frame("", "", 0)),
                "exact": part.exact,
                "idle_ns": part.idle_ns,
            }
            for part in gap.parts
        ],
    }


def _line(row: GapRow | GapPart) -> str:
    if row.frame is None:
        return ""
    return shown_place(row.frame) if row.exact else f"before {shown_place(row.frame)}"


def _details(row: GapRow) -> tuple[str, ...]:
    after = [f"after {shown_place(frame)}: {numbers.time(ns)}" for frame, ns in row.after[:_PLACES_SHOWN]]
    until = [f"until {shown_place(frame)}: {numbers.time(ns)}" for frame, ns in row.until[:_PLACES_SHOWN]]
    samples = sum(times for _, times in row.sampled)
    found = [
        f"{times} of {numbers.counted(samples, 'sample')}: {place}"
        for place, times in row.sampled[:_PLACES_SHOWN]
    ]
    return (*after, *until, *found)


def _header(result: GapsResult) -> tuple[str, ...]:
    idle, span = numbers.time(result.idle_ns), numbers.time(result.span_ns)
    parts = ", ".join(
        f"{part} {numbers.share(ns / result.span_ns if result.span_ns else 0.0)}"
        for part, ns in zip(PARTS, result.parts_ns, strict=True)
    )
    lines = [
        f"idle {idle} of {span} in {numbers.counted(result.gaps, 'gap')}; most of the time goes to "
        f"{result.bound_by}: {parts}",
        f"  steps: {result.how}"
        + (f"; {result.steps} of them, devices counted apart" if result.steps else ""),
    ]
    waits = f"  the host waited for the GPU {numbers.counted(result.host_waits, 'time')}"
    waits += f", {numbers.time(result.host_wait_ns)}" if result.host_waits else ""
    if result.late_frac is not None:
        waits += f"; it was late with {numbers.share(result.late_frac)} of its launches"
    lines.append(waits)
    if result.queue_full_ns:
        full = numbers.time(result.queue_full_ns)
        lines.append(f"  the launch queue was full for {full}: there the GPU was behind, not the host")
    if result.unknown_ns:
        unknown = numbers.share(result.unknown_ns / result.idle_ns)
        lines.append(f"  {unknown} of the idle time has no known cause")
    return tuple(lines)


def _trace_data(trace: Trace, result: GapsResult) -> dict[str, object]:
    return {
        "path": str(trace.path),
        "idle_ns": result.idle_ns,
        "span_ns": result.span_ns,
        "gaps": result.gaps,
        "unknown_ns": result.unknown_ns,
        "parts_ns": dict(zip(PARTS, result.parts_ns, strict=True)),
        "bound_by": result.bound_by,
        "steps": result.steps,
        "host_waits": result.host_waits,
        "host_wait_ns": result.host_wait_ns,
        "queue_full_ns": result.queue_full_ns,
        "late_frac": None if result.late_frac is None else round(result.late_frac, 6),
    }


def _data(row: GapRow) -> dict[str, object]:
    frame = row.frame or Frame("", "", 0)
    return {
        "key": row.key,
        "cause": row.cause,
        "what": row.what,
        "function": frame.function,
        "file": frame.file,
        "line": frame.line,
        "exact": row.exact,
        "idle_ns": row.idle_ns,
        "in_steps_ns": row.in_steps_ns,
        "per_step_ns": row.per_step_ns,
        "pieces": row.pieces,
        "share_frac": round(row.share_frac, 6),
        "after": [{**frame_data(frame), "idle_ns": ns} for frame, ns in row.after],
        "until": [{**frame_data(frame), "idle_ns": ns} for frame, ns in row.until],
        "sampled": [{"place": place, "samples": times} for place, times in row.sampled],
    }
