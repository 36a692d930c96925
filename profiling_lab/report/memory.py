# SPDX-License-Identifier: Apache-2.0
"""The tables of GPU memory: what was alive at a moment, growth from step to step, and the timeline."""

from __future__ import annotations

from typing import Any

from profiling_lab.analysis.memory.devices import Place
from profiling_lab.analysis.memory.growth import GrowthResult
from profiling_lab.analysis.memory.memory import DeviceSummary, MemoryResult, MemoryRow
from profiling_lab.analysis.memory.pressure import OutOfMemory
from profiling_lab.analysis.memory.timeline import TimelineResult, TimelineRow
from profiling_lab.report import numbers
from profiling_lab.report.fields import Field, frame_fields, table_of
from profiling_lab.report.lines.lines import shown_place
from profiling_lab.report.table import ALWAYS, SPARE, Report, Unit
from profiling_lab.trace import Trace

_ON = (
    Field("pid", "process", priority=SPARE),
    Field("device", "GPU", priority=ALWAYS),
)
LINE_FIELDS = (
    *frame_fields("place.frame", "file line function"),
    Field("phase", "phase", value="place.phase"),
    Field("no_line_because", value="place.reason"),
    Field("linked", value="place.is_linked"),
)
_FIELDS = (
    Field("key"),
    *_ON,
    Field("where", "line", cell=lambda row: where(row.place), value=lambda row: where(row.place),
          priority=ALWAYS, is_path=True, for_people_only=True),
    Field("kind", "kind", priority=ALWAYS),
    Field("bytes", "size", Unit.BYTES, priority=ALWAYS),
    Field("share_frac", "of all", Unit.FRAC, priority=ALWAYS),
    Field("blocks", "blocks", Unit.COUNT),
    Field("largest_bytes", "largest", Unit.BYTES),
    Field("requested_bytes", "requested", Unit.BYTES, priority=SPARE),
    *LINE_FIELDS,
    Field("parts", value=lambda row: [_part(part) for part in row.parts]),
)  # fmt: skip
_GROWTH = (
    Field("key"),
    *_ON,
    Field("where", "line", cell=lambda row: where(row.place), value=lambda row: where(row.place),
          priority=ALWAYS, is_path=True, for_people_only=True),
    Field("grown_bytes", "grown", Unit.BYTES, priority=ALWAYS),
    Field("per_step_bytes", "per step", Unit.BYTES, priority=ALWAYS),
    Field("steps_grown", "steps grown", Unit.COUNT, priority=ALWAYS),
    Field("first_bytes", "first step", Unit.BYTES),
    Field("last_bytes", "last step", Unit.BYTES),
    *LINE_FIELDS,
)  # fmt: skip
_TIMELINE = (
    Field("key"),
    *_ON,
    Field("start_ns", "from", Unit.NS, "time", priority=ALWAYS),
    Field("end_ns", "to", Unit.NS, "time"),
    Field("allocated_bytes", "allocated", Unit.BYTES, priority=ALWAYS),
    Field("reserved_bytes", "reserved", Unit.BYTES),
    Field("events", "events", Unit.COUNT, priority=SPARE),
)
_BAR = 30


def where(place: Place | None) -> str:
    """`model.py:30 forward`, `backward of model.py:30 forward`, or why the line is unknown."""
    if place is None:
        return ""
    if place.frame is None:
        return f"unknown: {place.reason}"
    text = f"{shown_place(place.frame)} {place.frame.function}"
    return f"backward of {text}" if place.is_linked else text


def memory_report(trace: Trace, result: MemoryResult, lines: int = 2) -> Report:
    """Rows of `memory` as a report; under a kind its lines, under a line its further kinds."""
    several = len(result.devices) > 1
    columns = ("pid device " if several else "") + (
        "where phase kind bytes share_frac blocks largest_bytes"
        if result.by == "line"
        else "kind bytes share_frac blocks largest_bytes"
    )
    table = table_of(
        _FIELDS, columns, result.rows, result.total_matched, (_details(row, lines) for row in result.rows)
    )
    return _report(
        trace, _headers(trace, result), table, by=result.by, at=result.at,
        devices=[_device(each) for each in result.devices],
    )  # fmt: skip


def _report(trace: Trace, header: tuple[str, ...], table: Any, **facts: Any) -> Report:
    return Report(
        command="memory",
        trace={"path": str(trace.path), **facts},
        header=header,
        table=table,
        coverage={},
    )


def _details(row: MemoryRow, most: int) -> tuple[str, ...]:
    if row.place is None:
        shown = [f"{numbers.size(part.bytes)} {where(part.place)}" for part in row.parts[:most]]
        rest = row.parts[most:]
        if most and rest:
            amount = numbers.size(sum(part.bytes for part in rest))
            shown.append(f"{amount} in {numbers.counted(len(rest), 'more line')}")
        return tuple(shown)
    kinds: dict[str, int] = {}
    for part in row.parts:
        kinds[part.kind] = kinds.get(part.kind, 0) + part.bytes
    if len(kinds) < 2 or not most:
        return ()
    return (", ".join(f"{numbers.size(size)} {kind}" for kind, size in sorted(kinds.items(), key=_largest)),)


def _largest(pair: tuple[str, int]) -> tuple[int, str]:
    return -pair[1], pair[0]


def _part(part: Any) -> dict[str, Any]:
    frame = part.place.frame
    return {
        "file": frame.file if frame else "",
        "line": frame.line if frame else None,
        "function": frame.function if frame else "",
        "phase": part.place.phase,
        "no_line_because": part.place.reason,
        "kind": part.kind,
        "bytes": part.bytes,
        "blocks": part.blocks,
    }


def _headers(trace: Trace, result: MemoryResult) -> tuple[str, ...]:
    lines: list[str] = []
    for each in result.devices:
        lines += _header(trace, result, each)
    return tuple(lines)


def _header(trace: Trace, result: MemoryResult, each: DeviceSummary) -> list[str]:
    process = f" of process {each.pid}" if each.pid and len(result.devices) > 1 else ""
    moment = {"peak": "at its peak", "end": "at the end"}.get(result.at, "then")
    of_all = f" of {numbers.size(each.total_bytes)}" if each.total_bytes else ""
    lines = [
        f"{trace.path.name}, GPU {each.device}{process}: {numbers.size(each.allocated_bytes)} "
        f"({each.allocated_bytes:,} bytes) allocated {moment}, {numbers.time(each.at_ns)} after the start; "
        f"{numbers.size(each.reserved_bytes)} reserved{of_all}"
    ]
    if result.at != "peak":
        lines.append(f"  peak: {numbers.size(each.peak_bytes)} at {numbers.time(each.peak_at_ns)}")
    lines.append(f"  {_against_torch(each)}")
    if kinds := ", ".join(f"{numbers.size(size)} {kind}" for kind, size in each.kinds):
        lines.append(f"  {kinds}")
    cached = each.cached
    if cached.free_bytes > 0 and not cached.knows_segments:
        share = numbers.share(cached.free_frac)
        lines.append(f"  {share} of the reserved memory is free: {numbers.size(cached.free_bytes)}")
    elif cached.free_bytes > 0:
        lines.append(
            f"  {numbers.share(cached.free_frac)} of the reserved memory is free: "
            f"{numbers.size(cached.free_bytes)}, of that {numbers.size(cached.in_used_segments_bytes)} in "
            f"segments that are in use, the largest free part {numbers.size(cached.largest_bytes)}"
        )
    for oom, place in each.out_of_memory:
        lines += _oom_lines(oom, place)
    return lines


def _against_torch(each: DeviceSummary) -> str:
    if each.is_cut:
        return (
            f"note: only the last {each.events:,} events were kept; an earlier peak may have been higher"
            + (f" (torch's own: {each.torch.allocated_peak:,} bytes)" if each.torch else "")
        )
    if each.agrees:
        return "this is torch's own peak (max_memory_allocated), to the byte"
    if each.torch is not None:
        return (
            f"note: torch's own peak is {each.torch.allocated_peak:,} bytes; it differs if the program reset "
            "its peak, or allocated before the recording began"
        )
    if not each.is_complete:
        return (
            "note: the history begins after the first allocation, so the peak is that of the recorded part, "
            "and older blocks have no line"
        )
    return "the history is complete, so the peak is torch's own, to the byte"


def _oom_lines(oom: OutOfMemory, place: Place) -> list[str]:
    cached = oom.cached
    had = numbers.size(oom.device_free_bytes)
    lack = "enough, so a limit of the program stopped it (set_per_process_memory_fraction)"
    if oom.short_bytes:
        lack = f"{numbers.size(oom.short_bytes)} too little"
    lines = [
        f"  out of memory at {where(place)}: {numbers.size(oom.requested_bytes)} requested, "
        f"{numbers.size(oom.needed_bytes)} needed from the driver, which had {had}: {lack}",
    ]
    if oom.fits_in_free_parts:
        lines.append(
            f"    the allocator had {numbers.size(cached.free_bytes)} free, but at most "
            f"{numbers.size(cached.largest_bytes)} in one piece: fragmentation; try "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    else:
        lines.append(
            f"    {numbers.size(cached.allocated_bytes)} were allocated, and "
            f"{numbers.size(cached.free_bytes)} of the reserved memory was free: too little even in one piece"
        )
    return lines


def _device(each: DeviceSummary) -> dict[str, Any]:
    knows = each.cached.knows_segments
    return {
        "pid": each.pid,
        "device": each.device,
        "at_ns": each.at_ns,
        "allocated_bytes": each.allocated_bytes,
        "reserved_bytes": each.reserved_bytes,
        "peak_bytes": each.peak_bytes,
        "peak_at_ns": each.peak_at_ns,
        "reserved_peak_bytes": each.reserved_peak_bytes,
        "kinds": dict(each.kinds),
        "free_bytes": each.cached.free_bytes,
        "free_in_used_segments_bytes": each.cached.in_used_segments_bytes if knows else None,
        "largest_free_bytes": each.cached.largest_bytes if knows else None,
        "events": each.events,
        "is_complete": each.is_complete,
        "is_cut": each.is_cut,
        "corrected_blocks": each.wrong_sizes,
        "torch_peak_bytes": each.torch.allocated_peak if each.torch else None,
        "torch_reserved_peak_bytes": each.torch.reserved_peak if each.torch else None,
        "total_bytes": each.total_bytes,
        "out_of_memory": [
            {
                "time_ns": oom.time_ns,
                "requested_bytes": oom.requested_bytes,
                "needed_bytes": oom.needed_bytes,
                "device_free_bytes": oom.device_free_bytes,
                "short_bytes": oom.short_bytes,
                "allocated_bytes": oom.cached.allocated_bytes,
                "reserved_bytes": oom.cached.reserved_bytes,
                "largest_free_bytes": oom.cached.largest_bytes,
                "fragmented": oom.fits_in_free_parts,
                "file": place.frame.file if place.frame else "",
                "line": place.frame.line if place.frame else None,
            }
            for oom, place in each.out_of_memory
        ],
    }


def growth_report(trace: Trace, result: GrowthResult) -> Report:
    """Rows of `memory --growth` as a report."""
    several = "pid device " if len(result.held_bytes) > 1 else ""
    columns = f"{several}where grown_bytes per_step_bytes steps_grown first_bytes last_bytes"
    table = table_of(_GROWTH, columns, result.rows, result.total_matched)
    header = [f"steps: {result.how}; {result.steps} in which memory was recorded"]
    for _, device, held in result.held_bytes:
        header.append(
            f"  GPU {device} held {numbers.size(held[0])} after the first step and {numbers.size(held[-1])} "
            f"after the last: {numbers.size(held[-1] - held[0])} more"
        )
    if leaking := [row for row in result.rows if row.leaks(result.steps)]:
        row = leaking[0]
        header.append(
            f"  {where(row.place)} holds {numbers.size(row.per_step_bytes)} more after each step: what it "
            "made is kept, in a list, a variable or a graph"
        )
    held_bytes = [{"pid": pid, "device": gpu, "bytes": list(held)} for pid, gpu, held in result.held_bytes]
    return _report(trace, tuple(header), table, steps=result.steps, held_bytes=held_bytes)


def timeline_report(trace: Trace, result: TimelineResult) -> Report:
    """Rows of `memory --timeline` as a report, with a bar for people."""
    most = max((row.reserved_bytes for row in result.rows), default=0)
    fields = (*_TIMELINE, Field("bar", "allocated, reserved", cell=lambda row: bar(row, most),
                                     value=lambda row: "", for_people_only=True))  # fmt: skip
    several = "pid device " if len({(row.pid, row.device) for row in result.rows}) > 1 else ""
    columns = f"{several}start_ns allocated_bytes reserved_bytes bar"
    table = table_of(fields, columns, result.rows, result.total_matched)
    return _report(trace, (f"{trace.path.name}: the most in each of equal intervals",), table)


def bar(row: TimelineRow, most: int) -> str:
    """`####....`: allocated and what else is reserved, against the most of all rows."""
    if not most:
        return ""
    allocated, reserved = (
        min(max(round(_BAR * held / most), 0), _BAR) for held in (row.allocated_bytes, row.reserved_bytes)
    )
    return "#" * allocated + "." * (reserved - allocated)
