# SPDX-License-Identifier: Apache-2.0
"""A capture file (spool) -> SQLite in Nsight Systems' schema. A function of the spool alone.

The file is built beside its destination and renamed when it is whole, so a reader never sees half of one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from profiling_lab.errors import LabError
from profiling_lab.recording import activity_tables, range_tables, target_tables
from profiling_lab.recording.schema import (
    ALWAYS_WRITTEN,
    NSYS_TABLES,
    PYREC_TABLES,
    create_table,
    enum_rows,
)
from profiling_lab.recording.spool import Rows, Spool
from profiling_lab.recording.strings import StringTable
from profiling_lab.recording.windows import keep_what_was_recorded


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion wrote: rows per table, and what the spool says about the recording."""

    rows: dict[str, int]
    meta: dict[str, str]


def convert(spool_path: str | Path, out_path: str | Path, meta: dict[str, str] | None = None) -> Converted:
    """Write `out_path` from the capture file `spool_path`; `meta` adds to what the capture says itself.

    Raises UnreadableInputError if the spool is none, LabError if the SQLite file cannot be written.
    """
    spool = Spool.read(spool_path)
    spool.meta.update(meta or {})
    keep_what_was_recorded(spool)
    strings = StringTable(spool.strings)
    rows = chain(
        activity_tables.build(spool, strings),
        range_tables.build(spool, strings),
        target_tables.build(spool, strings),
        strings.build(),  # last: every other table has named its strings by now
    )
    destination = Path(out_path)
    temporary = destination.with_name(destination.name + ".tmp")
    try:
        counts = _write(temporary, rows)
        os.replace(temporary, destination)
    except Exception as error:
        raise LabError(
            f"cannot write {destination} (the capture is kept in {spool_path}): {error}"
        ) from error
    finally:  # after Ctrl-C too
        with contextlib.suppress(OSError):
            temporary.unlink()
    return Converted(counts, spool.meta)


def _write(path: Path, rows: Iterable[Rows]) -> dict[str, int]:
    """Writes the tables as their rows come; returns how many each has."""
    import adbc_driver_sqlite.dbapi

    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    uri = f"file:{quote(os.fsencode(path.absolute()))}"  # a file name may be no UTF-8, which a text must be
    connection = adbc_driver_sqlite.dbapi.connect(uri, autocommit=True)
    counts = dict.fromkeys((*NSYS_TABLES, *PYREC_TABLES), 0)
    try:
        with connection.cursor() as cursor:
            # The file is thrown away if anything fails, so it needs no journal.
            for statement in ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "BEGIN"):
                cursor.execute(statement)
            for name in ALWAYS_WRITTEN:
                cursor.execute(create_table(name))
            for name, table in rows:
                if table.num_rows == 0:
                    continue
                if not counts[name] and name not in ALWAYS_WRITTEN:
                    cursor.execute(create_table(name))
                cursor.adbc_ingest(name, table, mode="append")
                counts[name] += table.num_rows
            for name, meanings in enum_rows().items():
                cursor.execute(create_table(name))
                cursor.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", meanings)
            cursor.execute("COMMIT")
    finally:
        connection.close()
    return counts
