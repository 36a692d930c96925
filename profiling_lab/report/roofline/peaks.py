# SPDX-License-Identifier: Apache-2.0
"""The table of a GPU's rates."""

from __future__ import annotations

from collections.abc import Container

from profiling_lab.analysis.roofline.peaks import Peaks
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.numbers import amount, rate, time
from profiling_lab.report.table import Report


def peaks_text(peaks: Peaks, used: Container[str] | None = None) -> str:
    """The memory and the arithmetic units, the fastest first. used: only these units; None: all."""
    rates: dict[float, list[str]] = {}
    for name, flops in peaks.flops_per_s.items():
        if used is None or name in used:
            rates.setdefault(flops, []).append(name)
    texts = [f"{', '.join(rates[flops])} {amount(flops, 'FLOP/s')}" for flops in sorted(rates, reverse=True)]
    return "; ".join([f"memory {rate(round(peaks.memory_bytes_per_s))}", *texts])


def peaks_report(peaks: Peaks) -> Report:
    """One row per rate."""
    rows = [("memory_bytes_per_s", peaks.memory_bytes_per_s)]
    rows += [(f"{name}_flops_per_s", value) for name, value in peaks.flops_per_s.items()]
    rows += list(peaks.others.items())
    table = table_of(
        (
            Field("name", value=lambda row: row[0]),
            Field("what", "what", value=lambda row: _what(row[0]), for_people_only=True),
            Field("value", "rate", value=lambda row: row[1], cell=lambda row: _shown(*row)),
        ),
        "what value",
        rows,
        len(rows),
    )
    driver = f", driver {peaks.driver}" if peaks.driver else ""
    return Report(
        command="peaks",
        trace={"gpu": peaks.gpu, "driver": peaks.driver, "source": peaks.source},
        header=(f"{peaks.gpu}{driver}: {peaks.source}",),
        table=table,
        coverage={},
        has_csv=False,
    )


_NAMES = {
    "memory": "memory, read and write",
    "l2": "L2 cache, read and write",
    "launch": "from one short kernel to the next, launched from Python",
    "host_to_device": "host to device, pinned",
    "device_to_host": "device to host, pinned",
    "device_to_device": "to another GPU",
}
_ENDINGS = ("_bytes_per_s", "_flops_per_s", "_ns")


def _what(name: str) -> str:
    short = next((name.removesuffix(end) for end in _ENDINGS if name.endswith(end)), name)
    return f"products in {short}" if name.endswith("_flops_per_s") else _NAMES.get(short, short)


def _shown(name: str, value: float) -> str | None:
    if name.endswith("_flops_per_s"):
        return amount(value, "FLOP/s")
    return time(round(value)) if name.endswith("_ns") else rate(round(value))
