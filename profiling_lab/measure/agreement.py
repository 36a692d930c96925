# SPDX-License-Identifier: Apache-2.0
"""Whether two functions return the same, within a tolerance that the user names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from profiling_lab.measure.calls import wait_for


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a result compares with that of the first function."""

    state: str
    """'agree', 'differ' or 'not compared'"""
    detail: str
    """where and by how much they differ, or why they were not compared; '' if they agree"""
    largest_difference: float | None = None
    """of all numbers, absolute; None if no numbers were compared"""


NOT_ASKED = Agreement("not compared", "--rtol or --atol compares them")


def agreement(first: object, other: object, rtol: float, atol: float) -> Agreement:
    """Numbers and arrays may differ by atol + rtol * |that of the first|; everything else must be equal.

    NaN equals NaN. Tuples and lists are the same, as are arrays of different libraries and dtypes.
    """
    if first is None or other is None:
        return Agreement("not compared", "a function returned nothing")
    wait_for([first, other])
    left, right = dict(_leaves(first)), dict(_leaves(other))
    if left.keys() != right.keys():
        place = next(iter(sorted(left.keys() ^ right.keys())))
        only = "the first" if place in left else "this"
        return Agreement("differ", f"only {only} has {_at(place) if place else 'a single value'}")
    largest: float | None = None
    for place, value in left.items():
        found = _compared(value, right[place], rtol, atol)
        if isinstance(found, Agreement):
            return Agreement(found.state, f"{_at(place)}: {found.detail}")
        if found is not None:
            largest = max(largest or 0.0, found)
    return Agreement("agree", "", largest)


def _at(place: str) -> str:
    return f"result{place}"


def _leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key in value:
            yield from _leaves(value[key], f"{place}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for i, each in enumerate(value):
            yield from _leaves(each, f"{place}[{i}]")
    else:
        yield place, value


def _compared(first: Any, other: Any, rtol: float, atol: float) -> float | Agreement | None:
    """The largest difference of numbers, None of other things that are equal; what is wrong otherwise."""
    import numpy as np

    a, b = _array(first), _array(other)
    if a is None or b is None:
        if (a is None) != (b is None):
            return _differ(f"{type(first).__name__} and {type(other).__name__}")
        if first is not other and not any("__eq__" in vars(kind) for kind in type(first).__mro__[:-1]):
            return Agreement("not compared", f"values of the type {type(first).__name__}")
        try:
            return None if bool(first == other) else _differ(f"{first!r:.60} and {other!r:.60}")
        except Exception:
            return Agreement("not compared", f"values of the type {type(first).__name__}")
    if a.shape != b.shape:
        return _differ(f"shapes {tuple(a.shape)} and {tuple(b.shape)}")
    with np.errstate(all="ignore"):
        distance = np.abs(a - b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        within = same | (distance <= atol + rtol * np.abs(a))
    if not within.all():
        wrong = np.flatnonzero(~within.ravel())
        at = int(wrong[0])
        return _differ(
            f"{len(wrong):,} of {a.size:,} numbers differ by more than the tolerance, the first "
            f"{a.ravel()[at]:.9g} and {b.ravel()[at]:.9g}"
        )
    finite = distance[~same]
    return float(finite.max()) if finite.size else 0.0


def _differ(detail: str) -> Agreement:
    return Agreement("differ", detail)


def _array(value: Any) -> Any:
    """float64 or complex128 on the host; None for what is not a number or an array of numbers."""
    import numpy as np

    try:
        if hasattr(value, "detach"):  # of torch, whose bfloat16 numpy does not have
            value = value.detach().cpu()
            value = value.resolve_conj().numpy() if value.is_complex() else value.double().numpy()
        array = np.asarray(value)
    except Exception:
        return None
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    try:
        return array.astype(np.float64) if array.dtype.kind not in "OSUMm" else None
    except (TypeError, ValueError):
        return None
