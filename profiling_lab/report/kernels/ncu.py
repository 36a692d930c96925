# SPDX-License-Identifier: Apache-2.0
"""The table of `ncu`: what the hardware counters say of the kernels of one line."""

from __future__ import annotations

from typing import Any

from profiling_lab.analysis.ncu.join import NcuResult, NcuRow
from profiling_lab.analysis.ncu.plan import PHASES
from profiling_lab.report import numbers
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.kernels.names import readable
from profiling_lab.report.paths import shown_path
from profiling_lab.report.table import ALWAYS, SPARE, Report, Unit
from profiling_lab.trace import Trace

_STALLS_SHOWN = 3
_FIELDS = (
    Field("key"),
    Field("phase", "phase", priority=ALWAYS),
    Field("kernel", "kernel", value="figures.kernel", priority=ALWAYS, may_be_cut=True,
          cell=lambda row: readable(row.figures.full_name, row.figures.kernel)),
    Field("launches", "launches", Unit.COUNT, value="figures.launches", priority=SPARE),
    Field("recorded_ns", "recorded", Unit.NS, "time", priority=ALWAYS),
    Field("recorded_launches"),
    Field("ncu_ns", value="figures.ncu_ns"),
    Field("sm_frac", "SM", Unit.FRAC, value="figures.sm_frac", priority=ALWAYS),
    Field("memory_frac", "memory", Unit.FRAC, value="figures.memory_frac", priority=ALWAYS),
    Field("dram_frac", "DRAM", Unit.FRAC, value="figures.dram_frac"),
    Field("occupancy_frac", "occupancy", Unit.FRAC, value="figures.occupancy_frac", priority=ALWAYS),
    Field("occupancy_limit_frac", "at most", Unit.FRAC, value="figures.occupancy_limit_frac"),
    Field("occupancy_limited_by", "limited by", value="figures.occupancy_limited_by", priority=ALWAYS),
    Field("stall", "longest stall", value=lambda row: _longest(row), for_people_only=True, priority=ALWAYS),
    Field("stalls", value=lambda row: dict(row.figures.stalls)),
    Field("sectors_per_load", "sectors/load", value="figures.sectors_per_load",
          cell=lambda row: _short(row.figures.sectors_per_load)),
    Field("sectors_per_store", "/store", value="figures.sectors_per_store",
          cell=lambda row: _short(row.figures.sectors_per_store), priority=SPARE),
    Field("scalar_flops", value="figures.scalar_flops"),
    Field("tensor_flops", value="figures.tensor_flops"),
    Field("flops_per_s", "FLOP/s", value="figures.flops_per_s",
          cell=lambda row: _rate(row)),
)  # fmt: skip
_COLUMNS = (
    "phase kernel launches recorded_ns sm_frac memory_frac dram_frac occupancy_frac occupancy_limit_frac "
    "occupancy_limited_by stall sectors_per_load sectors_per_store flops_per_s"
)


def ncu_report(trace: Trace, result: NcuResult, source: str) -> Report:
    """source: the name of ncu's report."""
    plan = result.plan
    table = table_of(_FIELDS, _COLUMNS, result.rows, len(result.rows), (_details(row) for row in result.rows))
    return Report(
        command="ncu",
        trace={"path": str(trace.path), "report": source, "file": plan.file, "line": plan.line},
        header=tuple(_header(result)),
        table=table,
        coverage={},
        summary={
            "gpu": result.device,
            "function": plan.function,
            "recorded_ns": {name: ns for name in PHASES if (ns := plan.phase_ns(name))},
            "profiled": result.profiled,
            "of_other_lines": result.others,
            "unknown": result.unknown,
            "missing": list(result.missing),
            "notes": list(result.notes),
        },
        below=tuple(_below(result)),
    )


def _header(result: NcuResult) -> list[str]:
    plan = result.plan
    times = [f"{numbers.time(ns)} {name}" for name in PHASES if (ns := plan.phase_ns(name))]
    lines = [
        f"{shown_path(plan.file)}:{plan.line} {plan.function}: {', '.join(times)} in kernels, recorded; "
        f"counters of {result.device}",
        f"{numbers.counted(result.profiled, 'launch' if result.profiled == 1 else 'launche')} profiled, "
        f"{numbers.count(result.others)} of them of other lines",
    ]
    if result.unknown:
        lines.append(f"  {numbers.count(result.unknown)} may be of this line or of another: not counted here")
    lines += [f"  note: {text}" for text in result.notes]
    if result.missing:
        lines.append(f"  not in the report: {', '.join(result.missing)}")
    return lines


def _below(result: NcuResult) -> list[str]:
    lines = [
        "SM, memory, DRAM: share of the peak under ncu, where caches start empty; the recorded time is "
        "without it"
    ]
    if any(row.figures.stalls for row in result.rows):
        lines.append("stalls: cycles that a warp waits for each instruction that is issued, by reason")
    if any(row.figures.sectors_per_load is not None for row in result.rows):
        lines.append(
            "sectors of 32 bytes per request: 4 if the threads of a warp use neighbouring floats, up to 32"
        )
    return lines


def _longest(row: NcuRow) -> str | None:
    return row.figures.stalls[0][0] if row.figures.stalls else None


def _details(row: NcuRow) -> tuple[str, ...]:
    shown: list[Any] = [
        f"{reason} {value:.2f}" for reason, value in row.figures.stalls[:_STALLS_SHOWN] if value
    ]
    return (f"stalls: {', '.join(shown)}",) if shown else ()


def _rate(row: NcuRow) -> str | None:
    """Without counters of the tensor cores, that of the other units, and what is left out."""
    found = row.figures
    if found.flops is not None or found.scalar_flops is None:
        return numbers.amount(found.flops_per_s, "FLOP/s")
    rate = numbers.amount(found.per_s(found.scalar_flops), "FLOP/s")
    return None if rate is None else f"{rate} without tensor cores"


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"
