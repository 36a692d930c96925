# SPDX-License-Identifier: Apache-2.0
"""Numbers for people. The only place that rounds: files and JSON keep integer nanoseconds and bytes."""

from __future__ import annotations

from collections.abc import Iterable

_TIME_UNITS = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000), ("ns", 1))
_SIZE_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))
_PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def time_unit(values_ns: Iterable[int]) -> tuple[str, int]:
    """The unit in which a column of times reads best; never seconds, so that two runs compare by eye."""
    largest = max((abs(value) for value in values_ns), default=0)
    return next(((unit, size) for unit, size in _TIME_UNITS[1:] if largest >= size), _TIME_UNITS[-1])


def in_unit(value: int, size: int) -> str:
    """A value in a unit of `size`, with three digits behind the point where the unit has parts."""
    if size == 1 or value == 0:
        return str(value)
    return f"{value / size:,.3f}" if abs(value) < 1000 * size else f"{value / size:,.1f}"


def time(value_ns: int) -> str:
    """`1.235 ms`"""
    unit, size = next(((u, s) for u, s in _TIME_UNITS if abs(value_ns) >= s), _TIME_UNITS[-1])
    return f"{in_unit(value_ns, size)} {unit}"


def size(value_bytes: int) -> str:
    """`1.5 MiB`"""
    unit, factor = next(((u, s) for u, s in _SIZE_UNITS if abs(value_bytes) >= s), _SIZE_UNITS[-1])
    return f"{value_bytes} B" if factor == 1 else f"{value_bytes / factor:,.1f} {unit}"


def rate(value_bytes_per_s: int) -> str:
    """`27.7 GB/s`, in powers of ten as links and memories are sold; a little is not nothing."""
    if 0 < value_bytes_per_s < 50_000_000:
        return "< 0.1 GB/s"
    return f"{value_bytes_per_s / 1e9:,.1f} GB/s"


def amount(value: float | None, unit: str) -> str | None:
    """`1.23 TFLOP/s`"""
    if value is None:
        return None
    prefix, size = next(((p, s) for p, s in _PREFIXES if value >= s), ("", 1.0))
    shown = f"{value / size:.3g}" if value < 999.5 * size else f"{value / size:,.0f}"
    return f"{shown} {prefix}{unit}"


def share(value_frac: float) -> str:
    """`12.3 %`; a small part is not nothing."""
    if 0 < value_frac < 0.0005:
        return "< 0.1 %"
    return f"{100 * value_frac:.1f} %"


def count(value: int) -> str:
    return f"{value:,}"


def counted(value: int, noun: str) -> str:
    """`1 kernel`, `1,234 kernels`"""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"
