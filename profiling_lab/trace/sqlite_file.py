# SPDX-License-Identifier: Apache-2.0
"""An SQLite file as columns. Opened read-only: a user's trace is never altered, not even by a journal."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace.columns import I64

MAGIC = b"SQLite format 3\x00"
BATCH_ROWS = 65536


def check_whole(path: Path) -> None:
    """Raise if the file is shorter than its header says: a copy that broke off, or a disk that ran full."""
    with path.open("rb") as file:
        header = file.read(100)
    size = path.stat().st_size
    if len(header) < 100:
        raise UnreadableInputError(f"{path} breaks off inside its SQLite header: {size} bytes")
    page_size = struct.unpack(">H", header[16:18])[0]
    page_size = 65536 if page_size == 1 else page_size
    changes, pages, valid_for = (struct.unpack(">I", header[at : at + 4])[0] for at in (24, 28, 92))
    if pages and changes == valid_for and size < pages * page_size:
        raise UnreadableInputError(
            f"{path} is a truncated SQLite file: its header promises {pages * page_size} bytes, it has {size}"
        )


@dataclass(slots=True)
class SqliteFile:
    """Tables and columns of one SQLite file, read through Arrow."""

    path: Path
    _connection: Any = field(init=False, repr=False)
    _columns: dict[str, tuple[str, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        import adbc_driver_sqlite.dbapi

        check_whole(self.path)
        # immutable: no locks and no side files; only where no write-ahead log waits to be read as well.
        wal = Path(f"{self.path}-wal")
        mode = "mode=ro" if wal.exists() and wal.stat().st_size else "mode=ro&immutable=1"
        uri = f"file:{quote(str(self.path.absolute()))}?{mode}"
        self._columns = {}
        try:
            self._connection = adbc_driver_sqlite.dbapi.connect(uri, autocommit=True)
            self._columns = self._read_columns()
        except Exception as error:
            raise self._unreadable(error) from None

    def close(self) -> None:
        self._connection.close()

    def _unreadable(self, error: Exception) -> UnreadableInputError:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        what = re.sub(r"^\w+: (\[SQLite\] )?", "", first_line)
        return UnreadableInputError(f"{self.path} cannot be read as SQLite: {what}")

    def _read_columns(self) -> dict[str, tuple[str, ...]]:
        names: dict[str, list[str]] = {}
        rows = self._batches(
            "SELECT CAST(m.name AS TEXT), CAST(c.name AS TEXT)"
            " FROM sqlite_master m JOIN pragma_table_info(m.name) c"
            " WHERE m.type IN ('table', 'view') ORDER BY m.name, c.cid"
        )
        for batch in rows:
            for table, column in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                names.setdefault(table, []).append(column)
        return {table: tuple(columns) for table, columns in names.items()}

    def _batches(self, query: str) -> Iterator[pa.RecordBatch]:
        with self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            cursor.execute(query)
            yield from cursor.fetch_record_batch()

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def columns(self, table: str) -> tuple[str, ...]:
        """The columns of a table, () if it does not exist."""
        return self._columns.get(table, ())

    def newest(self, table: str) -> str | None:
        """The table of that name with the highest `_V<n>` suffix, or None: exporters have renamed tables
        that way.
        """
        found = [
            (int(match[1] or 1), name)
            for name in self._columns
            if (match := re.fullmatch(rf"{re.escape(table)}(?:_V(\d+))?", name))
        ]
        return max(found)[1] if found else None

    def count(self, table: str) -> int:
        if table not in self._columns:
            return 0
        return int(self.integers(f'SELECT count(*) FROM "{table}"', 1)[0][0])

    def integers(self, query: str, width: int) -> list[I64]:
        """The `width` columns of a query as int64 arrays. The query gives every NULL a value (IFNULL)."""
        try:
            batches = list(self._batches(query))
        except Exception as error:
            raise self._unreadable(error) from None
        if not batches:
            return [np.empty(0, dtype=np.int64) for _ in range(width)]
        table = pa.Table.from_batches(batches)
        return [self._int64(column) for column in table.columns]

    def _int64(self, column: pa.ChunkedArray) -> I64:
        if column.null_count or column.type != pa.int64():
            raise UnreadableInputError(
                f"{self.path} has a value that is no integer where the schema has integers"
            )
        array: I64 = column.to_numpy()
        return array

    def select(self, table: str, wanted: dict[str, int | str], where: str = "") -> dict[str, I64]:
        """Integer columns of a table, NULL replaced.

        `wanted` maps the column to its value where it is NULL or where this schema lacks it; an SQL
        expression over
        the table may stand there instead of a number.
        """
        have = self.columns(table)
        terms = []
        for name, missing in wanted.items():
            known = f'CAST("{name}" AS INTEGER)' if name in have else "NULL"
            terms.append(f"IFNULL({known}, {missing})")
        query = f'SELECT {", ".join(terms)} FROM "{table}" {where}'
        return dict(zip(wanted, self.integers(query, len(wanted)), strict=True))

    def texts(self, query: str) -> list[tuple[str, ...]]:
        """Rows of text; bytes that are no UTF-8 are replaced. For small tables: it makes Python strings."""
        rows: list[tuple[str, ...]] = []
        try:
            for batch in self._batches(query):
                columns = [[decoded(value) for value in column.to_pylist()] for column in batch.columns]
                rows.extend(zip(*columns, strict=True))
        except UnreadableInputError:
            raise
        except Exception as error:
            raise self._unreadable(error) from None
        return rows

    def coded_texts(self, query: str, width: int) -> tuple[list[I64], list[str]]:
        """Integer columns and, last, one text column (given as BLOB) as numbers of distinct texts.

        Read batch by batch, so that a million equal stacks never lie in memory at once.
        """
        numbers: dict[bytes, int] = {}
        parts: list[list[I64]] = []
        try:
            for batch in self._batches(query):
                coded = batch.column(width).dictionary_encode()
                local = [
                    numbers.setdefault(bytes(text), len(numbers)) for text in coded.dictionary.to_pylist()
                ]
                codes = np.asarray(local, dtype=np.int64)[coded.indices.to_numpy(zero_copy_only=False)]
                parts.append(
                    [self._int64(pa.chunked_array([batch.column(i)])) for i in range(width)] + [codes]
                )
        except UnreadableInputError:
            raise
        except Exception as error:
            raise self._unreadable(error) from None
        if not parts:
            return [np.empty(0, dtype=np.int64) for _ in range(width + 1)], []
        columns = [np.concatenate([part[i] for part in parts]) for i in range(width + 1)]
        return columns, [decoded(text) for text in numbers]


def decoded(value: Any) -> str:
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
