# SPDX-License-Identifier: Apache-2.0
"""The lines of the program behind a row, as people and machines read them."""

from __future__ import annotations

from typing import Any

from profiling_lab.analysis.places import Place
from profiling_lab.report import numbers
from profiling_lab.report.fields import Field, frame_fields
from profiling_lab.report.lines.lines import shown_place
from profiling_lab.report.table import Unit


def place_lines(places: tuple[Place, ...], most: int) -> tuple[str, ...]:
    """The lines under a row: its places up to a limit with their share, and how many more there are."""
    shown = [f"{numbers.share(p.share_frac)} {place_text(p)}" for p in places[:most]]
    if most and len(places) > most:
        rest = sum(p.share_frac for p in places[most:])
        shown.append(f"{numbers.share(rest)} in {numbers.counted(len(places) - most, 'more place')}")
    return tuple(shown)


def place_text(place: Place) -> str:
    """`backward of model.py:30 attention`; where there is no line, the range around it and the reason."""
    if place.frame is not None:
        where = f"{shown_place(place.frame)} {place.frame.function}"
        return f"backward of {where}" if place.phase == "backward" else where
    return f"in {place.within} ({place.reason})" if place.within else f"no line: {place.reason}"


def place_fields() -> tuple[Field, ...]:
    """The first place of a row as plain fields, which CSV keeps, and all of them as a list."""

    def first(row: Any) -> Place | None:
        return row.places[0] if row.places else None

    return (
        *frame_fields(lambda row: getattr(first(row), "frame", None), "file line function"),
        Field("line_share_frac", unit=Unit.FRAC, value=lambda row: getattr(first(row), "share_frac", None)),
        Field("no_line_because", value=lambda row: getattr(first(row), "reason", "")),
        Field("within", value=lambda row: getattr(first(row), "within", "")),
        Field("lines", value=lambda row: [_place_data(place) for place in row.places]),
    )


def _place_data(place: Place) -> dict[str, object]:
    return {
        "file": place.frame.file if place.frame else "",
        "line": place.frame.line if place.frame else None,
        "function": place.frame.function if place.frame else "",
        "phase": place.phase,
        "no_line_because": place.reason,
        "within": place.within,
        "ns": place.ns,
        "count": place.count,
        "share_frac": round(place.share_frac, 6),
    }
