# SPDX-License-Identifier: Apache-2.0
"""The table of `bench`: each function's time, and whether it differs from the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiling_lab.measure.agreement import Agreement
from profiling_lab.measure.bench_files import MIN_ROUNDS, SPREAD_FRAC, UNDECIDED, BenchResult, Measured
from profiling_lab.report import numbers
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.table import ALWAYS, SPARE, Report, Unit

_MODES = {
    "events": "GPU time of one call",
    "graph": "GPU time of one call, captured in a CUDA graph",
    "stream": "time of one call in a row of them",
    "host": "wall clock of one call, to the end of its work",
}
_FIELDS = (
    Field("name", "function", priority=ALWAYS, is_path=True),
    Field("median_ns", "median", Unit.NS, "time", value=lambda row: round(row.timing.median_ns),
          priority=ALWAYS),
    Field("iqr_ns", "IQR", Unit.NS, "time", value=lambda row: round(row.timing.iqr_ns)),
    Field("samples", "samples", Unit.COUNT, value="timing.n", priority=SPARE),
    Field("ratio", "of the first", cell=lambda row: _three(row.ratio), priority=ALWAYS),
    Field("ratio_low", value="low"),
    Field("ratio_high", value="high"),
    Field("interval", "95 % interval", value=lambda row: _interval(row), for_people_only=True),
    Field("verdict", "verdict", priority=ALWAYS),
    Field("results", "results", value=lambda row: row.results.state if row.results else "", priority=ALWAYS),
    Field("results_detail", value=lambda row: row.results.detail if row.results else ""),
    Field("largest_difference", value="results.largest_difference"),
    Field("samples_ns", value=lambda row: list(row.timing.samples_ns)),
)  # fmt: skip
_COLUMNS = "name median_ns iqr_ns samples ratio interval verdict results"


def bench_report(
    result: BenchResult, gpu: Mapping[str, Any] | None, sharing: Mapping[str, Any] | None
) -> Report:
    """gpu: what GPUMonitor saw meanwhile; sharing: what is known of other processes. None on the CPU."""
    table = table_of(
        _FIELDS, _COLUMNS, result.rows, len(result.rows),
        (_details(row) for row in result.rows),
    )  # fmt: skip
    return Report(
        command="bench",
        trace={
            "device": result.device, "mode": result.mode, "cold": result.is_cold, "rounds": result.rounds,
            "calls_per_sample": result.calls_per_sample, "seed": result.seed,
            "jax_device": result.jax_device or None,
        },
        header=(*_header(result), *_gpu_lines(gpu), *_sharing_lines(sharing)),
        table=table,
        coverage={},
        summary={
            "first_over_itself": None if result.itself is None else list(result.itself),
            "gpu": None if gpu is None else dict(gpu),
            "sharing": None if sharing is None else dict(sharing),
        },
        has_csv=False,
        below=tuple(_below(result)),
    )  # fmt: skip


def _three(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _interval(row: Measured) -> str | None:
    return None if row.low is None or row.high is None else f"{row.low:.3f} .. {row.high:.3f}"


def _details(row: Measured) -> tuple[str, ...]:
    found: Agreement | None = row.results
    return (
        (f"results {found.state}: {found.detail}",) if found is not None and found.state == "differ" else ()
    )


def _header(result: BenchResult) -> list[str]:
    cache = "" if result.mode == "host" else ", L2 cold" if result.is_cold else ", L2 warm"
    calls = (
        f", {numbers.count(result.calls_per_sample)} calls a sample" if result.calls_per_sample > 1 else ""
    )
    where = f", JAX on {result.jax_device}" if result.jax_device else ""
    lines = [
        f"{_MODES[result.mode]} on {result.device}{where}{cache}: "
        f"{numbers.counted(result.rounds, 'round')} in turns{calls}"
    ]
    if any(row.results is not None and row.results.state == "differ" for row in result.rows):
        lines.insert(0, "RESULTS DIFFER: the times below are of functions that do not return the same")
    elif reasons := {
        row.results.detail for row in result.rows if row.results and row.results.state != "agree"
    }:
        lines.append(f"results are not compared: {'; '.join(sorted(reasons))}")
    return lines


def _gpu_lines(gpu: Mapping[str, Any] | None) -> list[str]:
    if gpu is None:
        return []
    parts = []
    for name, what, unit in (
        ("power_w", "power", "W"), ("sm_clock_mhz", "SM clock", "MHz"), ("temperature_c", "temperature", "°C")
    ):  # fmt: skip
        if (seen := gpu.get(name)) is not None:
            parts.append(f"{what} {seen['min']:.0f} to {seen['max']:.0f} {unit}")
    if not parts:
        return [
            f"power and clocks are unknown: {next(iter(gpu.get('unavailable', {}).values()), 'no sample')}"
        ]
    if limits := gpu.get("clock_limits"):
        parts.append(f"clocks limited by {', '.join(limits)}")
    return [f"meanwhile: {', '.join(parts)}"]


def _sharing_lines(sharing: Mapping[str, Any] | None) -> list[str]:
    return [sharing["sentence"]] if sharing is not None and sharing["sentence"] else []


def _below(result: BenchResult) -> list[str]:
    lines = []
    if result.itself is not None:
        low, high = result.itself
        lines.append(
            f"{result.rows[0].name} over itself: {low:.3f} .. {high:.3f}; an interval that reaches into "
            "this, or into its inverse, is no difference"
        )
    elif any(row.verdict == UNDECIDED for row in result.rows):
        lines.append(
            f"no interval from {numbers.counted(result.rounds, 'round')}: at least {MIN_ROUNDS} are needed"
        )
    if varying := [
        f"{row.name} by {numbers.share(row.timing.iqr_frac)}" for row in result.rows if row.varies
    ]:
        what = (
            "the GPU is shared, or its clock changes" if result.on_gpu else "other work, or a changing clock"
        )
        lines.append(
            f"the middle half of the samples varies: {', '.join(varying)}; on a quiet machine below "
            f"{numbers.share(SPREAD_FRAC)}: {what}"
        )
    return lines
