# SPDX-License-Identifier: Apache-2.0
"""The folder written by `nsys export --type=parquetdir` (or arrowdir): one file per table, with the columns
of the SQLite export.

Whole columns are read directly from the files. SQL queries run on an in-memory SQLite database, into which
their columns are loaded first, so every SQLite reader works on folders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace.columns import I64
from profiling_lab.trace.nsys import SUFFIXES
from profiling_lab.trace.nsys.connection import Connection
from profiling_lab.trace.nsys.sqlite_file import WHOLE, SqliteFile

_T = TypeVar("_T")


@dataclass(slots=True)
class ParquetFolder(SqliteFile):
    """The tables of a folder. Raises UnreadableInputError if it has none, or if one of them is damaged."""

    _files: dict[str, Path] = field(init=False, repr=False)
    _loaded: dict[str, set[str]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._files = _table_files(self.path)
        if not self._files:
            raise UnreadableInputError(
                f"{self.path} is a directory without the files of `nsys export --type=parquetdir`; "
                "a trace was expected"
            )
        self._columns = {table: self._names(table) for table in sorted(self._files)}
        self._connection = Connection(":memory:")

    @property
    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._files.values())

    def _unreadable(self, error: Exception) -> UnreadableInputError:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        return UnreadableInputError(f"{self.path} cannot be read: {first_line}")

    def parts(self, table: str, alias: str = "") -> tuple[str, ...]:
        return WHOLE

    def count(self, table: str) -> int:
        return self._table(table, self.columns(table)[:1]).num_rows if table in self._columns else 0

    def select(self, table: str, wanted: dict[str, int | str], where: str = "") -> dict[str, I64]:
        """As SqliteFile.select."""
        if not where and table in self._columns:
            columns = self._straight(table, wanted)
            if columns is not None:
                return columns
        return SqliteFile.select(self, table, wanted, where)

    def _straight(self, table: str, wanted: dict[str, int | str]) -> dict[str, I64] | None:
        """The columns without SQL; None if a value must be converted by SQLite."""
        have = [name for name in wanted if name in self.columns(table)]
        rows = self._table(table, have or self.columns(table)[:1])
        columns: dict[str, I64] = {}
        for name, missing in wanted.items():
            column = rows.column(name) if name in have else None
            if column is not None and column.type == pa.int64() and not column.null_count:
                columns[name] = column.to_numpy()
            elif not isinstance(missing, int) or (column is not None and column.type != pa.int64()):
                return None
            elif column is None:
                columns[name] = np.full(rows.num_rows, missing, dtype=np.int64)
            else:
                columns[name] = column.fill_null(missing).to_numpy()
        return columns

    def _read(
        self, query: str, parts: Sequence[str], read: Callable[[Iterator[pa.RecordBatch]], _T]
    ) -> list[_T]:
        words = {word.lower() for word in re.findall(r"\w+", query)}
        for table in self._columns:
            if table.lower() in words:
                self._load(table, words)
        return SqliteFile._read(self, query, parts, read)

    def _load(self, table: str, words: set[str]) -> None:
        """Load the columns of a query into the database, in addition to the columns already loaded."""
        named = [name for name in self.columns(table) if name.lower() in words] or [*self.columns(table)[:1]]
        loaded = self._loaded.get(table, set())
        if loaded and loaded >= set(named):
            return
        wanted = [name for name in self.columns(table) if name in loaded | set(named)]
        try:
            self._connection.ingest(table, self._batches_of(table, wanted), "replace")
        except UnreadableInputError:
            raise
        except Exception as error:
            raise self._unreadable(_named(self._files[table], error)) from None
        self._loaded[table] = set(wanted)

    def _batches_of(self, table: str, columns: list[str]) -> pa.RecordBatchReader:
        """Columns of a table in chunks, so that large texts are not in memory twice."""
        file = self._files[table]
        if file.suffix != ".parquet":
            return self._table(table, columns).to_reader()
        parquet = pyarrow.parquet.ParquetFile(file)
        schema = _table_of(parquet.schema_arrow.empty_table().select(columns)).schema

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in parquet.iter_batches(columns=columns):
                yield from _table_of(pa.Table.from_batches([batch]).select(columns)).to_batches()

        return pa.RecordBatchReader.from_batches(schema, batches())

    def _names(self, table: str) -> tuple[str, ...]:
        file = self._files[table]
        try:
            schema = pyarrow.parquet.read_schema(file) if file.suffix == ".parquet" else _arrow(file).schema
            names = tuple(schema.names)
        except Exception as error:
            raise self._unreadable(_named(file, error)) from None
        if len({name.lower() for name in names}) < len(names):
            raise self._unreadable(ValueError(f"{file.name}: two columns have the same name"))
        return names

    def _table(self, table: str, columns: Sequence[str]) -> pa.Table:
        """Columns of a table: integers as int64, everything else as SQLite takes it."""
        file = self._files[table]
        try:
            if file.suffix == ".parquet":
                rows = pyarrow.parquet.read_table(file, columns=list(columns))
            else:
                rows = _arrow(file).select(list(columns))
            return _table_of(rows)
        except Exception as error:
            raise self._unreadable(_named(file, error)) from None


def _table_files(folder: Path) -> dict[str, Path]:
    """The file of each table, which is named after it."""
    files = [file for suffix in SUFFIXES for file in sorted(folder.glob(f"*{suffix}")) if file.is_file()]
    return {file.stem: file for file in files}


def _arrow(file: Path) -> pa.Table:
    """An Arrow file, of either of the two formats that Arrow has."""
    with pa.memory_map(str(file)) as source:
        try:
            return pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).read_all()


def _table_of(rows: pa.Table) -> pa.Table:
    return pa.table([_plain(column) for column in rows.columns], names=rows.column_names)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column in a type that SQLite has."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if kind == pa.uint64():
        # Thread and process ids use all 64 bits; SQLite stores them as signed numbers.
        chunks = [
            pa.Array.from_buffers(pa.int64(), len(c), c.buffers(), offset=c.offset) for c in column.chunks
        ]
        return pa.chunked_array(chunks, type=pa.int64())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.int64())
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())
    if pa.types.is_temporal(kind):
        return column.cast(pa.int64(), safe=False)
    if pa.types.is_null(kind):
        return pa.chunked_array([pa.nulls(len(column), pa.int64())])
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column.cast(pa.binary())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string())
    # No reader uses lists and structures.
    return pa.chunked_array([pa.nulls(len(column), pa.int64())])


def _named(file: Path, error: Exception) -> Exception:
    first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ValueError(f"{file.name}: {first_line}")
