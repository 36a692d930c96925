# SPDX-License-Identifier: Apache-2.0
"""Fields of summary tables: count, total, average, median, extremes and standard deviation."""

from __future__ import annotations

from typing import Any

from profiling_lab.report.fields import Field, getter
from profiling_lab.report.table import ALWAYS, SPARE, USUAL, Unit

_SPREAD = {
    "average": "average",
    "median": "median",
    "shortest": "min",
    "longest": "max",
    "deviation": "std",
}
SPREAD = " ".join(f"{name}_ns" for name in _SPREAD)
"""columns of all of them, where the fields have no prefix"""


def stats_fields(
    stats: str, prefix: str = "", unit: Unit = Unit.NS, scale: str = "", **titles: str
) -> tuple[Field, ...]:
    """Of the Stats that are this attribute of a row; `prefix` distinguishes several sets. titles: of
    `total` and `count`, which have none else, and other ones than usual.

    Averages and extremes of nothing are unknown, not 0; they are shown in one unit, whatever the total is in.
    """
    get, suffix = getter(stats), "bytes" if unit is Unit.BYTES else "ns"

    def spread(name: str, title: str) -> Field:
        def value(row: Any) -> int | None:
            found = get(row)
            return getattr(found, name) if found and found.count else None

        return Field(
            f"{prefix}{name}_{suffix}",
            titles.get(name, title),
            unit,
            scale or f"{prefix}each",
            value,
            priority=USUAL if name in ("average", "median") else SPARE,
        )

    return (
        Field(f"{prefix}count", titles.get("count", ""), Unit.COUNT, value=f"{stats}.count"),
        Field(
            f"{prefix}total_{suffix}", titles.get("total", ""), unit, value=f"{stats}.total", priority=ALWAYS
        ),
        *(spread(name, title) for name, title in _SPREAD.items()),
    )
