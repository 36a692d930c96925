# SPDX-License-Identifier: Apache-2.0
"""Columns of summary tables: average, median, extremes and spread."""

from __future__ import annotations

from profiling_lab.analysis.stats import Stats
from profiling_lab.report.table import Column, Unit, Value

# Shown in one unit, whatever the total is shown in.
_SPREAD = (
    ("average", "average"),
    ("median", "median"),
    ("shortest", "min"),
    ("longest", "max"),
    ("deviation", "std"),
)


def spread_columns(prefix: str = "", title: str = "", unit: Unit = Unit.NS) -> tuple[Column, ...]:
    """`prefix` tells the columns apart where a row has several sets of them: `queue_`, shown as `queue`."""
    suffix = "_bytes" if unit is Unit.BYTES else "_ns"
    return tuple(
        Column(f"{prefix}{name}{suffix}", f"{title} {shown}".strip(), unit, f"{prefix}each")
        for name, shown in _SPREAD
    )


def spread_values(stats: Stats) -> tuple[Value, ...]:
    """None where there is nothing to take an average of: unknown, not 0."""
    if not stats.count:
        return (None,) * len(_SPREAD)
    return (stats.average, stats.median, stats.shortest, stats.longest, stats.deviation)


def stats_data(stats: Stats, prefix: str = "", unit: str = "ns") -> dict[str, Value]:
    """For machines; `total` and `count` with them."""
    values = dict(zip((name for name, _ in _SPREAD), spread_values(stats), strict=True))
    return {f"{prefix}count": stats.count, f"{prefix}total_{unit}": stats.total} | {
        f"{prefix}{name}_{unit}": value for name, value in values.items()
    }
