# SPDX-License-Identifier: Apache-2.0
"""An SQLite file as columns, opened read-only: a user's trace is never changed, not even by a journal."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from profiling_lab import _analysis
from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace.columns import I64, full
from profiling_lab.trace.nsys.connection import Connection, uri_of

_TIMES = ("start", "end")
"""columns whose texts are times only if they are whole numbers"""
PART = ":part"
"""A placeholder in queries for a condition on row ids, so that parts of a table are read in parallel."""
WHOLE = ("1",)
_PART_ROWS, _MOST_PARTS = 200_000, 4  # below this, a second connection costs more than it saves
_ROW_BYTES = 5  # SQLite needs more for any row: a small file cannot have a large table
_VERSION = re.compile(r"(?:_V(\d+))?")

_T = TypeVar("_T")


def check_whole(path: Path, bytes_at: Path | None = None) -> None:
    """Raise if the file is shorter than its header says: an interrupted copy, or a full disk."""
    bytes_at = bytes_at or path
    with bytes_at.open("rb") as file:
        header = file.read(100)
    size = bytes_at.stat().st_size
    if len(header) < 100:
        raise UnreadableInputError(f"{path} is truncated inside its SQLite header: {size} bytes")
    page_size = struct.unpack(">H", header[16:18])[0]
    page_size = 65536 if page_size == 1 else page_size
    changes, pages, valid_for = (struct.unpack(">I", header[at : at + 4])[0] for at in (24, 28, 92))
    if pages and changes == valid_for and size < pages * page_size:
        raise UnreadableInputError(
            f"{path} is a truncated SQLite file: its header says {pages * page_size} bytes, it has {size}"
        )


@dataclass(slots=True)
class SqliteFile:
    """Tables and columns of one SQLite file, read through Arrow."""

    path: Path
    _connection: Connection = field(init=False, repr=False)
    _columns: dict[str, tuple[str, ...]] = field(init=False, repr=False)
    _may_change: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_whole(self.path, self._bytes_at())
        wal = Path(f"{self._bytes_at()}-wal")
        self._may_change = wal.exists() and wal.stat().st_size > 0
        self._columns = {}
        try:
            self._connection = self._connect()
            self._columns = self._read_columns()
        except Exception as error:
            raise self._unreadable(error) from None

    def _bytes_at(self) -> Path:
        """The file that SQLite opens; messages name `path`."""
        return self.path

    def _connect(self) -> Connection:
        # immutable: no locks and no side files; only possible without a write-ahead log.
        mode = "mode=ro" if self._may_change else "mode=ro&immutable=1"
        return Connection(uri_of(self._bytes_at(), mode))

    def close(self) -> None:
        self._connection.close()

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size

    def _unreadable(self, error: Exception) -> UnreadableInputError:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        what = re.sub(r"^\w+: (\[SQLite\] )?", "", first_line)
        log = "; it has a write-ahead log: copy both files into a writable folder" if self._may_change else ""
        return UnreadableInputError(f"{self.path} cannot be read as SQLite: {what}{log}")

    def _read_columns(self) -> dict[str, tuple[str, ...]]:
        names: dict[str, list[str]] = {}
        rows = self._connection.rows(
            "SELECT CAST(m.name AS TEXT), CAST(c.name AS TEXT)"
            " FROM sqlite_master m JOIN pragma_table_info(m.name) c"
            " WHERE m.type IN ('table', 'view') ORDER BY m.name, c.cid",
        )
        for batch in rows:
            for table, column in _rows(batch):
                names.setdefault(decoded(table), []).append(decoded(column))
        return {table: tuple(columns) for table, columns in names.items()}

    def _read(
        self, query: str, parts: Sequence[str], read: Callable[[Iterator[_analysis.ArrowBatch]], _T]
    ) -> list[_T]:
        """The results of `read` for the rows of each part, in order."""

        def read_all(connection: Connection, part: str) -> _T:
            # A statement left open by an error would keep the connection from being closed.
            with closing(connection.rows(query.replace(PART, part))) as batches:
                return read(batches)

        def run(part: str) -> _T:
            connection = self._connect()
            try:
                return read_all(connection, part)
            finally:
                connection.close()

        try:
            if len(parts) == 1:
                return [read_all(self._connection, parts[0])]
            from concurrent.futures import ThreadPoolExecutor  # only large files wait for it

            with ThreadPoolExecutor(len(parts)) as threads:
                return list(threads.map(run, parts))
        except UnreadableInputError:
            raise
        except Exception as error:
            raise self._unreadable(error) from None

    def parts(self, table: str, alias: str = "") -> tuple[str, ...]:
        """Conditions for PART that divide a large table into parts, in row order."""
        prefix = f"{alias}." if alias else ""
        shadowed = {name.lower() for name in self.columns(table)}
        row = next((name for name in ("rowid", "_rowid_", "oid") if name not in shadowed), None)
        is_small = self._bytes_at().stat().st_size < 2 * _PART_ROWS * _ROW_BYTES
        if row is None or self._may_change or is_small:
            return WHOLE
        try:
            # Two queries: SQLite answers each from one end of the table, but both in one with a full scan.
            first, last = (
                self.integers(f'SELECT IFNULL({end}({row}), 0) FROM "{table}"', 1)[0]
                for end in ("min", "max")
            )
        except UnreadableInputError:
            return WHOLE  # a view, or a table without row ids
        rows = int(last[0]) - int(first[0]) + 1
        count = min(_MOST_PARTS, len(os.sched_getaffinity(0)), rows // _PART_ROWS)
        if count < 2:
            return WHOLE
        cuts = [int(first[0]) + rows * i // count for i in range(1, count)]
        after = [f"{prefix}{row} >= {cut}" for cut in cuts]
        until = [f"{prefix}{row} < {cut}" for cut in cuts]
        return (until[0], *(f"{a} AND {b}" for a, b in zip(after, until[1:], strict=False)), after[-1])

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def columns(self, table: str) -> tuple[str, ...]:
        """The columns of a table, () if it does not exist."""
        return self._columns.get(table, ())

    def require(self, table: str, *names: str) -> None:
        """Raise if a table lacks a required column."""
        if missing := [name for name in names if name not in self.columns(table)]:
            raise UnreadableInputError(
                f"{self.path} is not an export of nsys: its table {table} has no column "
                f"{' or '.join(missing)}"
            )

    def newest(self, table: str) -> str | None:
        """The table of that name with the highest `_V<n>` suffix, or None: exporters have renamed tables
        that way.
        """
        found = [
            (int(match[1] or 1), name)
            for name in self._columns
            if name.startswith(table) and (match := _VERSION.fullmatch(name, len(table)))
        ]
        return max(found)[1] if found else None

    def count(self, table: str) -> int:
        if table not in self._columns:
            return 0
        return int(self.integers(f'SELECT count(*) FROM "{table}"', 1)[0][0])

    def integers(self, query: str, width: int, parts: Sequence[str] = WHOLE) -> list[I64]:
        """The `width` columns of a query as int64 arrays. The query gives every NULL a value (IFNULL)."""
        batches = [batch for part in self._read(query, parts, list) for batch in part]
        return [self._int64(batches, i) for i in range(width)]

    def _int64(self, batches: Sequence[_analysis.ArrowBatch], column: int) -> I64:
        arrays = [values for batch in batches if (values := batch.integers(column)) is not None]
        if len(arrays) < len(batches):
            raise UnreadableInputError(f"{self.path} has a value that is not an integer in an integer column")
        return arrays[0] if len(arrays) == 1 else np.concatenate([*arrays, np.empty(0, np.int64)])

    def select(self, table: str, wanted: dict[str, int | str], where: str = "") -> dict[str, I64]:
        """Integer columns of a table, NULL replaced.

        `wanted` maps the column to its value where it is NULL or where this schema lacks it; an SQL
        expression may be used instead of a number.
        """
        have = self.columns(table)
        read = {name: missing for name, missing in wanted.items() if name in have or isinstance(missing, str)}
        read = read or dict([next(iter(wanted.items()))])  # one says how many rows there are
        terms = []
        for name, missing in read.items():
            known = f'CAST("{name}" AS INTEGER)' if name in have else "NULL"
            if name in have and name in _TIMES:
                # SQLite would convert the text 13:25:29 to 13.
                known = f'CASE WHEN typeof("{name}") <> \'text\' OR "{name}" = {known} THEN {known} END'
            terms.append(f"IFNULL({known}, {missing})")
        where = f"WHERE ({where.removeprefix('WHERE ')}) AND {PART}" if where else f"WHERE {PART}"
        query = f'SELECT {", ".join(terms)} FROM "{table}" {where}'
        found = dict(zip(read, self.integers(query, len(read), self.parts(table)), strict=True))
        rows = len(next(iter(found.values())))
        return {name: found[name] if name in found else full(rows, int(wanted[name])) for name in wanted}

    def texts(self, query: str) -> list[tuple[str, ...]]:
        """Rows of text; invalid UTF-8 is replaced. For small tables, because it creates Python strings."""

        def rows(batches: Iterator[_analysis.ArrowBatch]) -> list[tuple[str, ...]]:
            return [tuple(decoded(value) for value in row) for batch in batches for row in _rows(batch)]

        return self._read(query, WHOLE, rows)[0]

    def coded_texts(
        self, query: str, width: int, parts: Sequence[str] = WHOLE, operators: bool = False
    ) -> tuple[list[I64], list[str]]:
        """Integer columns and, last, one text column (given as BLOB) as numbers of distinct texts.

        With `operators` the texts of emit_nvtx are split: the number is that of the name, and the column
        before it is the sequence number (NO_SEQUENCE if there is none).
        """

        def coded(batches: Iterator[_analysis.ArrowBatch]) -> tuple[list[list[I64]], list[bytes]]:
            codes = _analysis.TextCodes()
            columns: list[list[I64]] = [[] for _ in range(width + 1 + operators)]
            for batch in batches:
                texts = batch.texts(width)
                if texts is None:
                    raise UnreadableInputError(f"{self.path} has a value that is not a text in a text column")
                offsets, data = texts
                found = codes.add_operators(offsets, data)[::-1] if operators else (codes.add(offsets, data),)
                integers = [self._int64([batch], i) for i in range(width)]
                for column, values in zip(columns, (*integers, *found), strict=True):
                    column.append(np.asarray(values))
            return columns, codes.texts()

        numbers: dict[bytes, int] = {}
        gathered: list[list[I64]] = [[] for _ in range(width + 1 + operators)]
        for columns, texts in self._read(query, parts, coded):
            # Each part has its own numbering of texts.
            number = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
            columns[-1] = [number[codes] for codes in columns[-1]]
            for column, pieces in zip(gathered, columns, strict=True):
                column += pieces
        none = np.empty(0, dtype=np.int64)
        return [np.concatenate([none, *pieces]) for pieces in gathered], [decoded(text) for text in numbers]


def _rows(batch: _analysis.ArrowBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(batch.values(column) for column in range(batch.width)), strict=True)


def decoded(value: Any) -> str:
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
