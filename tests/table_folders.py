# SPDX-License-Identifier: Apache-2.0
"""An SQLite trace as the folder of tables that nsys writes with --type=parquetdir or arrowdir."""

from __future__ import annotations

from pathlib import Path

import adbc_driver_sqlite.dbapi
import pyarrow as pa
import pyarrow.parquet


def to_folder(path: Path, folder: Path, kind: str = "parquet", chunk: int = 1 << 20) -> Path:
    """What nsys does: one file per table."""
    folder.mkdir()
    with adbc_driver_sqlite.dbapi.connect(f"file:{path}?mode=ro", autocommit=True) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            tables = [name for (name,) in cursor.fetchall()]
        for table in tables:
            with connection.cursor() as cursor:
                cursor.execute(f'SELECT * FROM "{table}"')
                rows = cursor.fetch_arrow_table()
            if kind == "parquet":
                pyarrow.parquet.write_table(rows, folder / f"{table}.parquet", row_group_size=chunk)
                continue
            form = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
            with form(folder / f"{table}.arrow", rows.schema) as writer:
                writer.write_table(rows)
    return folder
