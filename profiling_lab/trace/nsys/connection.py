# SPDX-License-Identifier: Apache-2.0
"""An SQLite database through ADBC's own classes, without pyarrow: its import takes as long as reading a small
trace.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite

from profiling_lab import _analysis

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 65536


def uri_of(path: Path, options: str = "") -> str:
    """The URI of a file, whose name may be invalid UTF-8. `options`: after the question mark."""
    return f"file:{quote(os.fsencode(path.absolute()))}" + (f"?{options}" if options else "")


def _opened(uri: str) -> adbc_driver_manager.AdbcDatabase:
    """As adbc_driver_sqlite.connect, which looks for its library with modules whose import takes as long as
    reading a small trace.
    """
    driver = Path(adbc_driver_sqlite.__file__).with_name("libadbc_driver_sqlite.so")
    if driver.is_file():
        return adbc_driver_manager.AdbcDatabase(driver=str(driver), uri=uri)
    return adbc_driver_sqlite.connect(uri)


class Connection:
    """One connection to one database. Each statement is committed at once, unless BEGIN was executed."""

    def __init__(self, uri: str) -> None:
        self._database = _opened(uri)
        self._connection = adbc_driver_manager.AdbcConnection(self._database)

    def close(self) -> None:
        self._connection.close()
        self._database.close()

    def execute(self, statement: str) -> None:
        """Execute a statement without results."""
        with adbc_driver_manager.AdbcStatement(self._connection) as prepared:
            prepared.set_sql_query(statement)
            prepared.execute_update()

    def rows(self, query: str) -> Generator[_analysis.ArrowBatch, None, None]:
        """The rows of a query, BATCH_ROWS at a time.

        The statement is open until all are read, or until the generator is closed.
        """
        with adbc_driver_manager.AdbcStatement(self._connection) as prepared:
            prepared.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            prepared.set_sql_query(query)
            stream, _ = prepared.execute_query()
            yield from _analysis.ArrowStream(stream)

    def ingest(self, table: str, rows: pa.Table | pa.RecordBatchReader, mode: str) -> None:
        """Write rows into a table. `mode`: "append", or "replace" for a new table."""
        options = {
            adbc_driver_manager.INGEST_OPTION_TARGET_TABLE: table,
            adbc_driver_manager.INGEST_OPTION_MODE: f"adbc.ingest.mode.{mode}",
        }
        with adbc_driver_manager.AdbcStatement(self._connection) as prepared:
            prepared.set_options(**options)
            prepared.bind_stream(rows)
            prepared.execute_update()
