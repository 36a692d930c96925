# SPDX-License-Identifier: Apache-2.0
"""The tables of idle time: by cause, or gap by gap."""

from __future__ import annotations

from collections.abc import Iterable

from profiling_lab.analysis.gaps.gaps import GapsResult
from profiling_lab.analysis.gaps.longest import Gap, GapList, GapPart
from profiling_lab.analysis.gaps.rows import GapRow
from profiling_lab.analysis.steps import PARTS
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, frame_fields, table_of
from profiling_lab.report.lines.lines import frame_data, shown_place
from profiling_lab.report.table import ALWAYS, SPARE, Report, Table, Unit
from profiling_lab.trace import Frame, Trace

_PLACES_SHOWN = 2
_PARTS_SHOWN = 6


def gaps_report(trace: Trace, result: GapsResult) -> Report:
    """Rows of `gaps` as a report; without steps there is no column per step."""
    per_step = "per_step_ns" if result.steps else ""
    table = table_of(
        _FIELDS,
        f"cause line what {per_step} idle_ns share_frac pieces",
        result.rows,
        result.total_matched,
        map(_details, result.rows),
    )
    return _report(trace, result, table)


def gap_list_report(trace: Trace, result: GapsResult, listed: GapList) -> Report:
    """The longest gaps one by one, under the header of `gaps`."""
    several = "pid device" if len({(gap.pid, gap.device) for gap in listed.gaps}) > 1 else ""
    table = table_of(
        _GAP_FIELDS,
        f"{several} start_ns idle_ns cause line what until",
        listed.gaps,
        listed.total_matched,
        map(_part_lines, listed.gaps),
    )
    return _report(trace, result, table)


def _report(trace: Trace, result: GapsResult, table: Table) -> Report:
    return trace_report(
        "gaps",
        trace,
        result.coverage,
        _header(result),
        table,
        idle_ns=result.idle_ns,
        span_ns=result.span_ns,
        gaps=result.gaps,
        unknown_ns=result.unknown_ns,
        parts_ns=dict(zip(PARTS, result.parts_ns, strict=True)),
        bound_by=result.bound_by,
        steps=result.steps,
        host_waits=result.host_waits,
        host_wait_ns=result.host_wait_ns,
        queue_full_ns=result.queue_full_ns,
        late_frac=None if result.late_frac is None else round(result.late_frac, 6),
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


def _part_data(part: GapPart) -> dict[str, object]:
    frame = frame_data(part.frame or Frame("", "", 0))
    return {"cause": part.cause, "what": part.what, **frame, "exact": part.exact, "idle_ns": part.idle_ns}


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


def _times(frames: Iterable[tuple[Frame, int]]) -> list[dict[str, object]]:
    return [{**frame_data(frame), "idle_ns": ns} for frame, ns in frames]


_FIELDS = (
    Field("key"),
    Field("cause", "cause", priority=ALWAYS),
    Field("what", "in", priority=SPARE),
    *frame_fields("frame", no_line=0, title="line", cell=_line, priority=ALWAYS, is_path=True),
    Field("exact"),
    Field("idle_ns", "idle", Unit.NS, priority=ALWAYS),
    Field("in_steps_ns"),
    Field("per_step_ns", "per step", Unit.NS, "step"),
    Field("pieces", "pieces", Unit.COUNT, priority=SPARE),
    Field("share_frac", "of idle", Unit.FRAC, priority=ALWAYS),
    Field("after", value=lambda row: _times(row.after)),
    Field("until", value=lambda row: _times(row.until)),
    Field("sampled", value=lambda row: [{"place": place, "samples": times} for place, times in row.sampled]),
)
_GAP_FIELDS = (
    Field("key"),
    Field("pid", "process", priority=ALWAYS),
    Field("device", "GPU", priority=ALWAYS),
    Field("start_ns", "at", Unit.NS, "at", priority=ALWAYS),
    Field("idle_ns", "idle", Unit.NS, priority=ALWAYS),
    Field("cause", "mostly", value="main.cause", priority=ALWAYS),
    Field(
        "line", "line", value=lambda gap: _line(gap.main), for_people_only=True, priority=ALWAYS, is_path=True
    ),
    Field("what", "in", value="main.what", for_people_only=True, priority=SPARE),
    Field(
        "until",
        "until",
        value=lambda gap: frame_data(gap.until) if gap.until else None,
        cell=lambda gap: shown_place(gap.until) if gap.until else "",
        is_path=True,
    ),
    Field("parts", value=lambda gap: [_part_data(part) for part in gap.parts]),
)
