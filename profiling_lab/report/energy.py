# SPDX-License-Identifier: Apache-2.0
"""The table of joules by line."""

from __future__ import annotations

from dataclasses import asdict

from profiling_lab.analysis.energy.device import MOST_ERROR_FRAC
from profiling_lab.analysis.energy.fit import CONFIDENCE_FRAC
from profiling_lab.analysis.energy.result import DeviceEnergy, EnergyResult, EnergyRow, Spread
from profiling_lab.records import replace
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.paths import shown_path
from profiling_lab.report.table import ALWAYS, FIRST_TO_GO, SPARE, USUAL, Report, Unit
from profiling_lab.trace import Trace


def energy_report(trace: Trace, result: EnergyResult) -> Report:
    """Rows of `energy` as a report."""
    needs = "needs_s" if any(row.needs_s is not None for row in result.rows) else ""
    table = table_of(
        _fields(result),
        f"key function phase gpu_ns power_w joules error_j share_frac {needs}",
        result.rows,
        result.total_matched,
    )
    header = [line for each in result.devices for line in _device_lines(each, len(result.devices) > 1)]
    report = trace_report("energy", trace, result.coverage, (*header, *_step_lines(result)), table)
    return replace(report, summary=summary(result), below=tuple(_below(result)))


def summary(result: EnergyResult) -> dict[str, object]:
    """What JSON says of the whole recording."""
    return {
        "joules": round(result.joules, 3),
        "steps_by": result.step_how,
        "step_j": _rounded(result.step_j),
        "sample_j": _rounded(result.sample_j),
        "flops_per_step": result.flops_per_step,
        "tflops_per_w": None if result.flops_per_j is None else round(result.flops_per_j / 1e12, 6),
        "confidence_frac": CONFIDENCE_FRAC,
        "told_within_frac": MOST_ERROR_FRAC,
        "devices": [_device_data(each) for each in result.devices],
    }


def _device_data(each: DeviceEnergy) -> dict[str, object]:
    data = asdict(each) | {"mean_w": round(each.mean_w, 3), "joules": round(each.joules, 3)}
    data |= {"step_j": _rounded(each.step_j), "step_error_j": _rounded(each.step_error_j)}
    limits = each.limits
    return data | {"limits": None if limits is None else {name: round(frac, 6) for name, frac in limits}}


def _fields(result: EnergyResult) -> tuple[Field, ...]:
    total = result.joules
    return (
        Field("key", "line", cell=row_name, priority=ALWAYS, is_path=True),
        Field("function", "function", priority=FIRST_TO_GO),
        Field("file"),
        Field("line"),
        Field("phase", "phase", priority=USUAL),
        Field("gpu_ns", "time", Unit.NS, scale="time", priority=ALWAYS),
        Field("power_w", "power", cell=lambda row: _watts(row.power_w),
              value=lambda row: _rounded(row.power_w), priority=USUAL),
        Field("joules", "energy", cell=lambda row: _joules(row.joules),
              value=lambda row: _rounded(row.joules), priority=ALWAYS),
        Field("error_j", "+/-", cell=lambda row: _joules(row.error_j),
              value=lambda row: _rounded(row.error_j), priority=ALWAYS),
        Field("share_frac", "of all", Unit.FRAC, priority=SPARE,
              value=lambda row: None if row.joules is None or not total else row.joules / total),
        Field("needs_s", "needs", cell=_needs, value=lambda row: _rounded(row.needs_s), priority=USUAL),
    )  # fmt: skip


def row_name(row: EnergyRow) -> str:
    return f"{shown_path(row.file)}:{row.line}" if row.file else row.key


def _needs(row: EnergyRow) -> str | None:
    return None if row.needs_s is None else f"{row.needs_s:,.0f} s"


def _joules(value: float | None) -> str | None:
    return None if value is None else numbers.amount(value, "J")


def _watts(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f} W"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _device_lines(each: DeviceEnergy, several: bool) -> list[str]:
    process = f" of process {each.pid}" if several else ""
    of_limit = f" of at most {_watts(each.power_limit_w.mean)}" if each.power_limit_w else ""
    idle = numbers.share(each.idle_ns / each.ns if each.ns else 0.0)
    lines = [
        f"GPU {each.device}{process}: {_joules(each.joules)} in {numbers.time(each.ns)}, "
        f"{_watts(each.mean_w)} on average{of_limit}; idle {idle} of the time"
    ]
    if each.step_j is not None and each.step_error_j is not None:
        lines.append(
            f"  {_joules(each.step_j)} per step, +/- {_joules(each.step_error_j)}, the mean of "
            f"{numbers.counted(each.steps, 'step')}"
        )
    clocks = [_range(each.sm_clock_mhz, "MHz SM clock"), _range(each.memory_clock_mhz, "MHz memory clock")]
    clocks += [_range(each.temperature_c, "°C"), _limits(each)]
    if shown := ", ".join(filter(None, clocks)):
        lines.append(f"  {shown}")
    lines.append(
        f"  the counter changes every {numbers.time(each.period_ns)}; {each.samples:,} changes, "
        f"each known to +/- {numbers.time(each.spread_ns)}"
        + (f"; it is {numbers.time(each.lag_ns)} late" if not each.why_no_lines else "")
    )
    if each.why_no_lines:
        lines.append(f"  no energy by line: {each.why_no_lines}")
    return lines


def _range(spread: Spread | None, unit: str) -> str:
    if spread is None:
        return ""
    low, high = f"{spread.low:,.0f}", f"{spread.high:,.0f}"
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _limits(each: DeviceEnergy) -> str:
    if each.limits is None:
        return "what limited the clocks is not known"
    if not each.limits:
        return "nothing limited the clocks"
    shares = ", ".join(f"{name} in {numbers.share(frac)}" for name, frac in each.limits)
    return f"clocks limited by {shares} of the samples"


def _step_lines(result: EnergyResult) -> list[str]:
    lines = []
    if result.step_j is not None:
        several = " on all GPUs" if len(result.devices) > 1 else ""
        sample = "" if result.sample_j is None else f", {_joules(result.sample_j)} per sample"
        lines.append(f"a step takes {_joules(result.step_j)}{several}{sample} (steps: {result.step_how})")
    if result.flops_per_j is not None:
        rate = numbers.amount(result.flops_per_j, "FLOP/s per watt")
        lines.append(f"  {rate}, by the FLOPs that were counted for one step")
    return lines


def _below(result: EnergyResult) -> list[str]:
    lines = [
        f"+/-: the energy lies within with {CONFIDENCE_FRAC:.0%} confidence; fitted to the counter, to "
        "which all rows sum"
    ]
    if any(row.joules is None for row in result.rows):
        lines.append(
            f"-: not known to {MOST_ERROR_FRAC:.0%}; needs: the length of a recording that would tell it. "
            "A line that always runs in the same proportion to others cannot be distinguished from them"
        )
    return lines
