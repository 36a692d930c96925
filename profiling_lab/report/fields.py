# SPDX-License-Identifier: Apache-2.0
"""What a row of a command says, declared once: tables, CSV and JSON are made of the same fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from profiling_lab.records import dataclass
from profiling_lab.report.table import USUAL, Column, Table, Unit, Value

Getter: TypeAlias = str | Callable[[Any], Any]
"""an attribute of the row, like `stats.total`, or a function of the row"""

_UNIT_OF_ENDING = {"_ns": Unit.NS, "_bytes": Unit.BYTES, "_bytes_per_s": Unit.RATE, "_frac": Unit.FRAC}


def getter(value: Getter) -> Callable[[Any], Any]:
    """Along a path of attributes None leads to None."""
    if callable(value):
        return value
    names = value.split(".")

    def get(row: Any) -> Any:
        for name in names:
            row = None if row is None else getattr(row, name)
        return row

    return get


@dataclass(frozen=True, slots=True)
class Field:
    """`key` names it in JSON and CSV, `title` heads its column where it has one.

    value: the attribute named like the key where it is not given. cell: what people read instead.
    Fractions of JSON and CSV are rounded to `digits` (None: not at all). priority, is_path, may_be_cut: how
    its column behaves on a narrow screen, see Column.
    """

    key: str
    title: str = ""
    unit: Unit = Unit.TEXT
    scale: str = ""
    value: Getter = ""
    cell: Callable[[Any], Value] | None = None
    for_people_only: bool = False
    digits: int | None = 6
    may_be_cut: bool = False
    priority: int = USUAL
    is_path: bool = False

    @property
    def get(self) -> Callable[[Any], Any]:
        return getter(self.value or self.key)

    def data(self, row: Any) -> Any:
        value = self.get(row)
        rounds = self.unit is Unit.FRAC and self.digits is not None and value is not None
        return round(value, self.digits) if rounds else value

    @property
    def data_column(self) -> Column:
        """The unit of the value in files: where people see no column of that unit, the key says it."""
        units = (unit for ending, unit in _UNIT_OF_ENDING.items() if self.key.endswith(ending))
        return Column(self.key, self.title, next(units, Unit.TEXT) if self.unit is Unit.TEXT else self.unit)


def table_of(
    fields: Iterable[Field],
    columns: str,
    rows: Sequence[Any],
    total_matched: int,
    details: Iterable[tuple[str, ...]] = (),
    details_in: str = "",
) -> Table:
    """The rows with these columns, keys of fields in the order in which people see them; machines get all."""
    fields = tuple(fields)
    known = {field.key: field for field in fields}
    shown = [known[key] for key in columns.split()]
    cells = [field.cell or field.get for field in shown]
    return Table(
        tuple(
            Column(
                field.key,
                field.title,
                field.unit,
                field.scale,
                field.priority,
                field.is_path,
                field.may_be_cut,
            )
            for field in shown
        ),
        tuple(tuple(cell(row) for cell in cells) for row in rows),
        total_matched,
        tuple(details),
        tuple({f.key: f.data(row) for f in fields if not f.for_people_only} for row in rows),
        details_in,
        tuple(field.data_column for field in fields if not field.for_people_only),
    )


def frame_fields(
    frame: Getter, keys: str = "function file line", no_line: int | None = None, **of_line: Any
) -> tuple[Field, ...]:
    """Where the Frame is that belongs to a row; some have none. of_line: how people see the line."""
    get = getter(frame)

    def field(key: str) -> Field:
        none = no_line if key == "line" else ""
        return Field(key, value=lambda row: getattr(get(row), key, none), **of_line if key == "line" else {})

    return tuple(map(field, keys.split()))
