# SPDX-License-Identifier: Apache-2.0
"""A capture file (spool) -> SQLite in Nsight Systems' schema. A function of the spool alone.

The file is built beside its destination and renamed when it is whole, so a reader never sees half of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from profiling_lab.errors import LabError, UnreadableInputError, UsageError
from profiling_lab.recording import spool_file as files
from profiling_lab.recording.spool import Rows, Spool, StringTable
from profiling_lab.recording.tables import activity, ranges, target
from profiling_lab.recording.tables.schema import (
    ALWAYS_WRITTEN,
    NSYS_TABLES,
    PYREC_TABLES,
    create_table,
    enum_rows,
)
from profiling_lab.recording.windows import keep_what_was_recorded


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion wrote: rows per table, and what the spool says about the recording.

    `unreadable` is one clause about what was damaged in it, "" if nothing was.
    """

    rows: dict[str, int]
    meta: dict[str, str]
    unreadable: str = ""


def convert(
    spool_path: str | Path,
    out_path: str | Path,
    meta: dict[str, str] | None = None,
    *,
    spool_file: int = -1,
    overwrite: bool = True,
) -> Converted:
    """Write `out_path` from the capture file `spool_path`; `meta` adds to what the capture says itself.

    spool_file: a descriptor of the capture, for whoever holds its lock; without one the file must not be
    written any more. overwrite: an existing file of this name is replaced.

    Raises UnreadableInputError if the spool is none, UsageError if it is still written, LabError if the
    SQLite file cannot be written.
    """
    source, destination = Path(spool_path), Path(out_path)
    file = spool_file if spool_file >= 0 else _open(source)
    try:
        spool = Spool.read(source, file)
        spool.meta.update(meta or {})
        spool.meta["unreadable_bytes"] = str(spool.unreadable_bytes)
        spool.meta["unreadable_places"] = str(spool.unreadable_places)
        return _convert(spool, file, destination, overwrite)
    finally:
        if spool_file < 0:
            os.close(file)


def _open(path: Path) -> int:
    try:
        return files.open_finished(path)
    except files.OccupiedError as taken:
        if taken.held is files.Held.OTHER:
            raise UnreadableInputError(f"{path} is not a capture of the recorder") from None
        by = f" (process {taken.process})" if taken.process else ""
        raise UsageError(
            f"{path} is still being written: its recording runs{by}; it can be recovered when that has ended"
        ) from None
    except OSError as error:
        raise UnreadableInputError(f"cannot read {path}: {error.strerror}") from error


def _convert(spool: Spool, file: int, destination: Path, overwrite: bool) -> Converted:
    temporary = destination.with_name(destination.name + ".tmp")
    try:
        claim = files.create(temporary, replace_dead=True)
    except files.OccupiedError as taken:
        what = "another process writes it" if taken.held is files.Held.LIVE else f"{temporary} is in the way"
        raise LabError(_cannot_write(spool, file, destination, what)) from None
    except OSError as error:
        raise LabError(_cannot_write(spool, file, destination, error)) from error
    try:
        counts = _write(temporary, _tables(spool))
        os.fsync(claim)  # some file systems say only now that they are full
        _put_in_place(temporary, destination, overwrite)
    except FileExistsError:
        raise UsageError(
            _cannot_write(spool, file, destination, "a file of this name has been made meanwhile")
        ) from None
    except _UnfitError as error:
        raise UnreadableInputError(f"{spool.path} holds what no recorder writes: {error}") from error
    except Exception as error:
        raise LabError(_cannot_write(spool, file, destination, error)) from error
    finally:  # after Ctrl-C too
        files.remove(claim, temporary)
        os.close(claim)
    return Converted(counts, spool.meta, spool.unreadable)


def _cannot_write(spool: Spool, file: int, destination: Path, why: object) -> str:
    kept = files.place(file, spool.path)
    where = f"the capture is kept in {kept}" if kept else "the capture was deleted"
    return f"cannot write {destination} ({where}): {why}"


class _UnfitError(Exception):
    """The capture is whole, but its content makes no recording."""


def _tables(spool: Spool) -> Iterator[Rows]:
    """All rows of the file. Raises _UnfitError whatever a crafted capture makes go wrong."""
    try:
        keep_what_was_recorded(spool)
        strings = StringTable(spool.strings)
        yield from activity.build(spool, strings)
        yield from ranges.build(spool, strings)
        yield from target.build(spool, strings)
        yield from strings.build()  # last: every other table has named its strings by now
    except (MemoryError, OSError):
        raise
    except Exception as error:
        raise _UnfitError(f"{type(error).__name__}: {error}") from error


def _put_in_place(temporary: Path, destination: Path, overwrite: bool) -> None:
    """Give the whole file its name in one step. FileExistsError: there is one already."""
    if overwrite:
        os.replace(temporary, destination)
        return
    try:
        os.link(temporary, destination)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: the name is claimed, then replaced
        os.close(os.open(destination, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        os.replace(temporary, destination)


def _write(path: Path, rows: Iterable[Rows]) -> dict[str, int]:
    """Writes the tables into the empty file as their rows come; returns how many each has."""
    import adbc_driver_sqlite.dbapi

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
