# SPDX-License-Identifier: Apache-2.0
"""The table of sampled hardware counters by line."""

from __future__ import annotations

from functools import partial

from profiling_lab.analysis.counters.by_line import BUSY, MOST_ERROR_FRAC, CountedRow, CountersResult, Known
from profiling_lab.analysis.energy.fit import CONFIDENCE_FRAC
from profiling_lab.records import replace
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.paths import shown_path
from profiling_lab.report.table import ALWAYS, FIRST_TO_GO, SPARE, USUAL, Report, Unit
from profiling_lab.trace import Trace

_TITLES = {
    "dram_read": "DRAM read",
    "dram_written": "DRAM written",
    "sm_active": "SMs with work",
    "issued": "issuing",
    "tensor": "tensor pipe",
    "pcie_read": "PCIe read",
    "pcie_written": "PCIe written",
    "nvlink_received": "NVLink received",
    "nvlink_sent": "NVLink sent",
}
_SPARE = ("issued", "pcie_read", "pcie_written", "nvlink_received", "nvlink_sent")


def counters_report(trace: Trace, result: CountersResult) -> Report:
    """Rows of `counters_by_line` as a report."""
    names = [name for name in _TITLES if any(name in row.counters for row in result.rows)]
    shown = " ".join(f"{name}_rate" if name not in BUSY else f"{name}_frac" for name in names)
    table = table_of(_fields(names), f"key function phase gpu_ns {shown}", result.rows, result.total_matched)
    header = f"{result.samples:,} samples of hardware counters, one every {numbers.time(result.period_ns)}"
    report = trace_report("counters", trace, result.coverage, (header,), table)
    below = [
        f"rates are fitted to the samples: they lie within +/- {MOST_ERROR_FRAC:.0%} with "
        f"{CONFIDENCE_FRAC:.0%} confidence; -: not known so well. --format json has each error",
        "DRAM written: what the L2 cache wrote back in the time of a line, also of lines before it",
    ]
    return replace(
        report, summary={"samples": result.samples, "period_ns": result.period_ns}, below=tuple(below)
    )


def _fields(names: list[str]) -> tuple[Field, ...]:
    fields = [
        Field("key", "line", cell=_row_name, priority=ALWAYS, is_path=True),
        Field("function", "function", priority=FIRST_TO_GO),
        Field("file"),
        Field("line"),
        Field("phase", "phase", priority=USUAL),
        Field("gpu_ns", "time", Unit.NS, scale="time", priority=ALWAYS),
    ]
    for name in names:
        spare = SPARE if name in _SPARE else USUAL
        fields += [_amount(name), _error(name)]
        fields.append(
            Field(f"{name}_frac", _TITLES[name], Unit.FRAC, value=partial(_rate, name), priority=spare)
            if name in BUSY
            else Field(f"{name}_rate", _TITLES[name], Unit.RATE, value=partial(_per_s, name), priority=spare)
        )
    return tuple(fields)


def _amount(name: str) -> Field:
    unit = "busy_ns" if name in BUSY else "bytes"
    return Field(f"{name}_{unit}", value=lambda row: _of(row, name, "amount"))


def _error(name: str) -> Field:
    unit = "busy_ns" if name in BUSY else "bytes"
    return Field(f"{name}_error_{unit}", value=lambda row: _of(row, name, "error"))


def _of(row: CountedRow, name: str, what: str) -> int | None:
    known = row.counters.get(name)
    return None if known is None else round(getattr(known, what))


def _rate(name: str, row: CountedRow) -> float | None:
    """Per nanosecond of the row, if it is told."""
    known: Known | None = row.counters.get(name)
    if known is None or not row.gpu_ns or not known.is_told:
        return None
    return known.amount / row.gpu_ns


def _per_s(name: str, row: CountedRow) -> int | None:
    rate = _rate(name, row)
    return None if rate is None else round(rate * 1e9)


def _row_name(row: CountedRow) -> str:
    return f"{shown_path(row.file)}:{row.line}" if row.file else row.key
