# SPDX-License-Identifier: Apache-2.0
"""Convert a capture file (spool) to SQLite in Nsight Systems' schema. The result depends only on the spool.

The file is written next to its destination and renamed when complete, so a reader never sees a partial file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.errors import LabError, UnreadableInputError, UsageError
from profiling_lab.recording import spool_file as files
from profiling_lab.recording.spool import Rows, Spool, StringTable
from profiling_lab.recording.tables import activity, counters, energy, memory, ranges, target, work
from profiling_lab.recording.tables.arrow_columns import of_list
from profiling_lab.recording.tables.schema import (
    ALWAYS_WRITTEN,
    NSYS_TABLES,
    PYREC_TABLES,
    column_names,
    create_table,
    enum_rows,
)
from profiling_lab.recording.windows import keep_what_was_recorded


@dataclass(frozen=True, slots=True)
class Converted:
    """The result of a conversion: rows per table, and the metadata of the recording.

    `unreadable` describes damage in the spool, "" if there is none.
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
    """Write `out_path` from the capture file `spool_path`; `meta` is added to the metadata of the capture.

    spool_file: a descriptor of the capture, for a caller that holds its lock; without it the capture must be
    complete. overwrite: replace an existing file.

    Raises UnreadableInputError if it is not a spool, UsageError if it is still being written, LabError if the
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
        if taken.occupant is files.Occupant.OTHER:
            raise UnreadableInputError(f"{path} is not a capture of the recorder") from None
        by = f" (process {taken.process})" if taken.process else ""
        raise UsageError(
            f"{path} is still being written by a running recording{by}; it can be recovered after the "
            "recording has ended"
        ) from None
    except OSError as error:
        raise UnreadableInputError(f"cannot read {path}: {error.strerror}") from error


def _convert(spool: Spool, file: int, destination: Path, overwrite: bool) -> Converted:
    temporary = destination.with_name(destination.name + ".tmp")
    try:
        claim = files.create(temporary, replace_dead=True)
    except files.OccupiedError as taken:
        what = (
            "another process is writing it"
            if taken.occupant is files.Occupant.LIVE
            else f"{temporary} is in the way"
        )
        raise LabError(_cannot_write(spool, file, destination, what)) from None
    except OSError as error:
        raise LabError(_cannot_write(spool, file, destination, error)) from error
    try:
        counts = _write(temporary, _tables(spool))
        os.fsync(claim)  # some file systems report only here that they are full
        _put_in_place(temporary, destination, overwrite)
    except FileExistsError:
        raise UsageError(
            _cannot_write(spool, file, destination, "a file with this name was created meanwhile")
        ) from None
    except _InvalidCaptureError as error:
        raise UnreadableInputError(f"{spool.path} contains data that no recorder writes: {error}") from error
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


class _InvalidCaptureError(Exception):
    """The capture is complete, but its contents are not a valid recording."""


def _tables(spool: Spool) -> Iterator[Rows]:
    """All rows of the file. Raises _InvalidCaptureError for any failure caused by a crafted capture."""
    try:
        keep_what_was_recorded(spool)
        strings = StringTable(spool.strings)
        allocations = memory.read(spool)  # its stacks belong to those of the calls
        yield from activity.build(spool, strings)
        yield from ranges.build(spool, strings)
        yield from memory.build(spool, allocations)
        yield from target.build(spool, strings)
        yield from work.build(spool, strings)
        yield from energy.build(spool)
        yield from counters.build(spool)
        yield from strings.build()  # last: all other tables have added their strings
    except (MemoryError, OSError):
        raise
    except Exception as error:
        raise _InvalidCaptureError(f"{type(error).__name__}: {error}") from error


def _put_in_place(temporary: Path, destination: Path, overwrite: bool) -> None:
    """Rename the complete file atomically. FileExistsError: the destination exists."""
    if overwrite:
        os.replace(temporary, destination)
        return
    try:
        os.link(temporary, destination)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: claim the name, then replace it
        os.close(os.open(destination, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        os.replace(temporary, destination)


def _write(path: Path, rows: Iterable[Rows]) -> dict[str, int]:
    """Write the tables into the empty file as their rows arrive; returns the number of rows of each."""
    import pyarrow as pa

    from profiling_lab.trace.nsys.connection import Connection, uri_of

    connection = Connection(uri_of(path))
    counts = dict.fromkeys((*NSYS_TABLES, *PYREC_TABLES), 0)
    try:
        # The file is deleted if anything fails, so it needs no journal.
        for statement in ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "BEGIN"):
            connection.execute(statement)
        for name in ALWAYS_WRITTEN:
            connection.execute(create_table(name))
        for name, table in rows:
            if table.num_rows == 0:
                continue
            if not counts[name] and name not in ALWAYS_WRITTEN:
                connection.execute(create_table(name))
            connection.ingest(name, table, "append")
            counts[name] += table.num_rows
        for name, meanings in enum_rows().items():
            connection.execute(create_table(name))
            columns = [
                of_list(column, pa.string() if isinstance(column[0], str) else pa.int64())
                for column in zip(*meanings, strict=True)
            ]
            connection.ingest(name, pa.table(columns, names=column_names(name)), "append")
        connection.execute("COMMIT")
    finally:
        connection.close()
    return counts
