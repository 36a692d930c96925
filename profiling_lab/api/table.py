# SPDX-License-Identifier: Apache-2.0
"""A table of an analysis for programs and notebooks: the rows of the command's JSON, shown as its text."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from profiling_lab.api.row import Row
from profiling_lab.errors import LabError, UsageError
from profiling_lab.records import replace
from profiling_lab.report.html_table import html_table
from profiling_lab.report.json_text import encode, readable
from profiling_lab.report.table import Report, Unit, write

if TYPE_CHECKING:
    import pandas
    import pyarrow

Result = TypeVar("Result")
MOST_SHOWN = 60
"""rows of a longer table that are shown at once"""

_UNITS = {
    Unit.NS: "ns",
    Unit.BYTES: "bytes",
    Unit.RATE: "bytes/s",
    Unit.FRAC: "fraction",
    Unit.COUNT: "count",
}


class Table(Generic[Result]):
    """Rows in order: `table[0]` is one, `table["gpu_ns"]` are the values of a column, `table[:10]` is a part.

    Values are those of the command's JSON: times are whole nanoseconds, sizes bytes, shares fractions of 1;
    None is unknown. `str()` and notebooks show what the terminal does.
    """

    def __init__(self, report: Report, result: Result) -> None:
        self.report = report
        """what the command prints"""
        self.result = result
        """the result of the analysis, with the types of profiling_lab.analysis and profiling_lab.rules"""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values of a row, as in JSON."""
        return tuple(column.name for column in self.report.table.data_columns)

    @property
    def units(self) -> dict[str, str]:
        """The unit of each column that has one: ns, bytes, bytes/s, fraction or count."""
        columns = self.report.table.data_columns
        return {column.name: _UNITS[column.unit] for column in columns if column.unit in _UNITS}

    @property
    def header(self) -> tuple[str, ...]:
        """The lines above the table: how much GPU time it covers, and what it says as a whole."""
        return self.report.header

    @property
    def facts(self) -> dict[str, Any]:
        """What the table is about: `trace` of the JSON."""
        return self.report.trace

    @property
    def coverage(self) -> dict[str, Any]:
        """How much GPU time the table covers, and why the rest has no line: `coverage` of the JSON."""
        return self.report.coverage

    @property
    def summary(self) -> dict[str, Any] | None:
        """What the table says as a whole, where that is more than its rows: `summary` of the JSON."""
        return self.report.summary

    @property
    def total_matched(self) -> int:
        """The number of rows without `limit`."""
        return self.report.table.total_matched

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(map(Row, self._records))

    @cached_property
    def _records(self) -> tuple[dict[str, Any], ...]:
        import msgspec  # the command line needs no rows

        # By way of JSON, so that no value can differ from the command's.
        return msgspec.json.decode(encode(self.report.table.data or ()), type=tuple[dict[str, Any], ...])

    def __len__(self) -> int:
        return len(self.report.table.data or ())

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @overload
    def __getitem__(self, wanted: int) -> Row: ...
    @overload
    def __getitem__(self, wanted: slice) -> Table[Result]: ...
    @overload
    def __getitem__(self, wanted: str) -> list[Any]: ...
    def __getitem__(self, wanted: int | slice | str) -> Row | Table[Result] | list[Any]:
        if isinstance(wanted, slice):
            return Table(self._part(wanted), self.result)
        if not isinstance(wanted, str):
            return Row(self._records[wanted])
        if wanted not in self.columns:
            raise KeyError(f"this table has no column {wanted!r}; it has {', '.join(self.columns)}")
        return [record[wanted] for record in self._records]

    def _part(self, rows: slice) -> Report:
        table = self.report.table
        part = replace(
            table, rows=table.rows[rows], details=table.details[rows], data=(table.data or ())[rows]
        )
        return replace(self.report, table=part)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows, as the command's JSON has them."""
        return [dict(record) for record in self._records]

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame; `attrs["units"]` has the units. Whole numbers stay whole, also among unknowns.

        Raises UsageError if pandas is not installed.
        """
        pd = _installed("pandas", "to_pandas")
        data = {
            name: pd.array(self[name], dtype="Int64") if self._has_gaps(name) else self[name]
            for name in self.columns
        }
        frame = pd.DataFrame(data, columns=list(self.columns))
        frame.attrs["units"] = self.units
        return frame

    def _has_gaps(self, name: str) -> bool:
        """Whether a column has unknowns among whole numbers. As floats these would not be exact."""
        values = self[name]
        known = [value for value in values if value is not None]
        return 0 < len(known) < len(values) and all(type(value) is int for value in known)

    def to_arrow(self) -> pyarrow.Table:
        """A pyarrow Table; the metadata of a field has its unit.

        Raises UsageError if pyarrow is not installed.
        """
        pa = _installed("pyarrow", "to_arrow")
        columns = [self._arrow_array(pa, name) for name in self.columns]
        fields = [
            pa.field(name, column.type, metadata={"unit": self.units[name]} if name in self.units else None)
            for name, column in zip(self.columns, columns, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    def _arrow_array(self, pa: Any, name: str) -> Any:
        values, unit = self[name], self.units.get(name)
        if unit is None:
            return pa.array(values)
        number = pa.float64() if unit == "fraction" else pa.int64()
        if any(isinstance(value, dict) for value in values):  # numbers by name; as a struct it may be empty
            return pa.array(
                [None if value is None else list(value.items()) for value in values],
                type=pa.map_(pa.string(), number),
            )
        column = pa.array(values)
        # Nothing known, or no rows.
        return column.cast(number) if pa.types.is_null(column.type) else column

    @overload
    def to_csv(self, path: None = None) -> str: ...
    @overload
    def to_csv(self, path: str | os.PathLike[str]) -> None: ...
    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """The command's CSV: written to `path`, or returned without it. Lists within a row are left out.

        Raises LabError if the file cannot be written.
        """
        return self._written("csv", path)

    @overload
    def to_json(self, path: None = None) -> str: ...
    @overload
    def to_json(self, path: str | os.PathLike[str]) -> None: ...
    def to_json(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """The command's JSON, with facts and coverage: written to `path`, or returned without it."""
        return self._written("json", path)

    def to_markdown(self) -> str:
        """For a comment on a pull request."""
        report, footer = self._shown(len(self))
        text = _text_of(report, "md")
        return f"{text}\n{footer}\n" if footer else text

    def _written(self, form: Literal["csv", "json"], path: str | os.PathLike[str] | None) -> str | None:
        text = _text_of(self.report, form)
        if path is None:
            return text
        try:
            Path(path).write_bytes(text.encode())
        except OSError as error:
            raise LabError(f"{os.fspath(path)} cannot be written: {error.strerror}") from error
        return None

    def __str__(self) -> str:
        report, footer = self._shown()
        text = _text_of(report, "table").rstrip("\n")
        return f"{text}\n\n{footer}" if footer else text

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(*self._shown())

    def _shown(self, most: int = MOST_SHOWN) -> tuple[Report, str]:
        """The first rows, and the line below them."""
        report = self._part(slice(most)) if len(self) > most else self.report
        shown = len(report.table.data or ())
        footer = f"{shown} of {self.total_matched} rows" if shown < self.total_matched else ""
        return replace(report, table=replace(report.table, total_matched=len(report.table.rows))), footer

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.columns)


def _text_of(report: Report, form: str) -> str:
    stream = io.StringIO()
    write(report, form, stream)
    return readable(stream.getvalue())


def _installed(module: str, caller: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{caller}() needs {module}, which cannot be imported ({error}): pip install {module}"
        ) from error
