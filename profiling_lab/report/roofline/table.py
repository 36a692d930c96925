# SPDX-License-Identifier: Apache-2.0
"""The table of time against the speed of light."""

from __future__ import annotations

from profiling_lab.analysis.roofline.model_error import KindError, errors, loose
from profiling_lab.analysis.roofline.roofline import (
    ON_THE_ROOF_FRAC,
    SHORT_NS,
    RooflineResult,
    RoofRow,
)
from profiling_lab.records import replace
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.paths import shown_path
from profiling_lab.report.roofline.peaks import peaks_text
from profiling_lab.report.table import ALWAYS, FIRST_TO_GO, SPARE, USUAL, Report, Unit
from profiling_lab.trace import Trace

_MOST_UNCOUNTED = 3


def roofline_report(trace: Trace, result: RooflineResult) -> Report:
    """Rows of `roofline` as a report."""
    function = "function" if result.by == "line" else ""
    phase = "phase" if any(row.phase for row in result.rows) else ""
    roof = "roof_frac limit light_ns could_win_ns" if result.peaks else ""
    sampled = "sampled_bytes_per_s" if _is_sampled(result) else ""
    table = table_of(
        _fields(result),
        f"key {function} {phase} gpu_ns kernels flops bytes intensity flops_per_s bytes_per_s "
        f"{sampled} {roof}",
        result.rows,
        result.total_matched,
        (_details(row, result.by) for row in result.rows),
    )
    report = trace_report("roofline", trace, result.coverage, _header(result), table)
    return replace(report, summary=summary(result), below=tuple(_below(result)))


def summary(result: RooflineResult) -> dict[str, object]:
    """What JSON says of the whole step."""
    peaks = result.peaks
    return {
        "source": "modelled",
        "gpu": result.gpu,
        "step": int(result.step) if result.step.isdecimal() else None,
        "step_gpu_ns": result.step_ns,
        "counted_ns": result.counted_ns,
        "light_ns": None if result.light_ns is None else round(result.light_ns),
        "uncounted": [{"name": name, "gpu_ns": ns} for name, ns in result.uncounted],
        "failures": result.failures,
        "peaks": None
        if peaks is None
        else {
            "source": peaks.source,
            "memory_bytes_per_s": round(peaks.memory_bytes_per_s),
            "flops_per_s": {name: round(rate) for name, rate in peaks.flops_per_s.items()},
        },
        "error_by_kind": {
            kind: {"bytes_median_frac": found.bytes_frac, "flops_median_frac": found.flops_frac}
            for kind, found in errors().items()
            if kind in result.kinds
        },
    }


def _fields(result: RooflineResult) -> tuple[Field, ...]:
    return (
        Field(
            "key",
            result.by,
            cell=lambda row: row_name(row, result.by),
            priority=ALWAYS,
            is_path=result.by not in ("op", "kernel"),
        ),
        Field("function", "function", priority=FIRST_TO_GO),
        Field("file"),
        Field("line"),
        Field("phase", "phase", priority=ALWAYS),
        Field("operators", value=lambda row: list(row.operators)),
        Field("kinds", value=lambda row: list(row.kinds)),
        Field("calls"),
        Field("kernels", "kernels", Unit.COUNT, priority=FIRST_TO_GO),
        Field("gpu_ns", "time", Unit.NS, scale="time", priority=ALWAYS),
        Field("flops", "FLOPs", cell=lambda row: numbers.amount(row.flops, "FLOP"), priority=SPARE),
        Field("math"),
        Field("read_bytes"),
        Field("written_bytes"),
        Field("bytes", "bytes", Unit.BYTES, priority=SPARE),
        Field("intensity", "FLOP/B", cell=lambda row: _ratio(row.intensity), priority=SPARE),
        Field("flops_per_s", "FLOP/s", cell=_achieved, priority=USUAL),
        Field("bytes_per_s", "bandwidth", Unit.RATE, priority=USUAL),
        Field("sampled_bytes_per_s", "measured", Unit.RATE, value=_sampled, priority=USUAL),
        Field(
            "sampled_error_bytes_per_s",
            value=lambda row: None if row.sampled is None else round(row.sampled.error),
        ),
        Field("roof_frac", "of the roof", Unit.FRAC, priority=ALWAYS),
        Field("limit", "limited by", cell=limit_text, priority=ALWAYS),
        Field(
            "light_ns",
            "at best",
            Unit.NS,
            scale="time",
            value=lambda row: None if row.light_ns is None else round(row.light_ns),
            priority=USUAL,
        ),
        Field("occupancy_estimate_frac", value="shape.occupancy_frac"),
        Field("occupancy_limited_by", value=lambda row: row.shape.limited_by if row.shape else ""),
        Field("could_win_ns", "could win", Unit.NS, scale="time", priority=USUAL),
    )


def _is_sampled(result: RooflineResult) -> bool:
    return any(_sampled(row) is not None for row in result.rows)


def _sampled(row: RoofRow) -> int | None:
    """None: there are no samples, or they do not tell it."""
    return round(row.sampled.amount) if row.sampled is not None and row.sampled.is_told else None


def limit_text(row: RoofRow) -> str:
    """`memory`, `compute` or `latency`, and whether to stop there, on the roof."""
    if row.is_on_the_roof:
        return f"{row.limit}: stop here"
    return row.limit


def row_name(row: RoofRow, by: str) -> str:
    if not row.file:
        return row.key
    if by == "line":
        return f"{shown_path(row.file)}:{row.line}"
    if by == "layer":
        return row.key.replace(row.file, shown_path(row.file))
    return f"{row.function} ({shown_path(row.file)})"


def _details(row: RoofRow, by: str) -> tuple[str, ...]:
    if by == "kernel" and row.shape is not None and row.shape.occupancy_frac is not None:
        cause = f", limited by {row.shape.limited_by}" if row.shape.limited_by else ""
        return (f"{row.shape.usual}, estimated occupancy {numbers.share(row.shape.occupancy_frac)}{cause}",)
    return () if by in ("op", "kernel") else (_operators(row),)


def _operators(row: RoofRow) -> str:
    names = [name.removeprefix("aten::") for name in row.operators]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    math = f"; {row.math}" if row.math else ""
    return f"{', '.join(names[:4])}{more}{math}"


def _ratio(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _achieved(row: RoofRow) -> str | None:
    return None if row.flops_per_s is None else numbers.amount(row.flops_per_s, "FLOP/s")


def _header(result: RooflineResult) -> tuple[str, ...]:
    step = f"step {result.step}" if result.step else "one step"
    share = numbers.share(result.counted_ns / result.step_ns if result.step_ns else 0.0)
    lines = [
        f"{step}: {numbers.time(result.step_ns)} of GPU time, {share} of it in operators that are counted",
        *_roof_lines(result),
        "source: modelled from shapes and dtypes: FLOPs of products, convolutions and attention; bytes read "
        "once and written once, without reuse in a cache",
        *_error_lines(result),
        *_sampled_lines(result),
    ]
    for name, ns in result.uncounted[:_MOST_UNCOUNTED]:
        lines.append(f"  not counted: {numbers.time(ns)} in {name}")
    if result.failures:
        lines.append(f"  {numbers.counted(result.failures, 'operator call')} could not be counted")
    return tuple(lines)


def _roof_lines(result: RooflineResult) -> list[str]:
    peaks = result.peaks
    if peaks is None:
        which = f"the rates of {result.gpu} are unknown" if result.gpu else "the GPU is unknown"
        return [f"{which}: profiling-lab peaks -o FILE measures them there, --peaks FILE reads them"]
    used = {row.math for row in result.rows}
    lines = [f"roof of {peaks.gpu}, {peaks.source}: {peaks_text(peaks, used)}"]
    if result.light_ns is not None and result.counted_ns:
        share = numbers.share(result.light_ns / result.counted_ns)
        lines.append(
            "at the speed of light what is counted would take "
            f"{numbers.time(round(result.light_ns))}, {share} of its time now"
        )
    return lines


def _error_lines(result: RooflineResult) -> list[str]:
    known = {kind: found for kind, found in errors().items() if kind in result.kinds}
    lines = []
    if tight := [f"{kind} {_error(found)}" for kind, found in known.items() if not found.is_loose]:
        lines.append(
            f"  error of the bytes against hardware counters, median by kind of operator: {', '.join(tight)}"
        )
    if wide := [f"{kind} {_error(found)}" for kind, found in known.items() if found.is_loose]:
        lines.append(f"  over {numbers.share(loose())}: {', '.join(wide)}")
    if unknown := [kind for kind in result.kinds if kind not in known]:
        lines.append(f"  error not measured: {', '.join(unknown)}")
    return lines


def _error(found: KindError) -> str:
    return numbers.share(found.bytes_frac)


def _sampled_lines(result: RooflineResult) -> list[str]:
    if not _is_sampled(result):
        return []
    told = [row.sampled for row in result.rows if row.sampled is not None and row.sampled.is_told]
    worst = max(known.error / known.amount for known in told if known.amount)
    return [
        "source of `measured`: hardware counters, sampled in all steps: what went between memory and L2 "
        f"cache; errors up to {numbers.share(worst)}"
    ]


def _below(result: RooflineResult) -> list[str]:
    if not result.rows or result.peaks is None:
        return []
    lines = [
        f"stop here: {numbers.share(ON_THE_ROOF_FRAC)} and more of the roof; latency: less than "
        f"{numbers.time(SHORT_NS)} of work per kernel, so fewer and larger kernels help"
    ]
    if any((row.roof_frac or 0) > 1 for row in result.rows):
        lines.append(
            "more than 100 %: data was still in the L2 cache, or the GPU ran faster than when it was measured"
        )
    return lines
