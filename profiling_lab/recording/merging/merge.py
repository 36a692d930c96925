# SPDX-License-Identifier: Apache-2.0
"""Merge recordings of several processes of one job into one file with the same schema.

SQLite copies the rows in chunks, so memory does not grow with the files. As in a conversion, the file is
written next to its destination and renamed when complete.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from profiling_lab.errors import LabError, UsageError
from profiling_lab.recording.merging.facts import (
    Part,
    check_one_job,
    merged_facts,
    new_pids,
    read_part,
)
from profiling_lab.recording.merging.rules import ROW_BY_ROW, SAME_ROWS_ONCE, Moved
from profiling_lab.recording.tables.schema import (
    ALWAYS_WRITTEN,
    NSYS_TABLES,
    PYREC_TABLES,
    column_names,
    create_table,
    enum_rows,
)
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.process_ids import pid_of

Told = Callable[[str, int, int], None]
_PIECE_ROWS = 200_000
_PID_MASK = 0xFFFFFF << 24


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge."""

    rows: dict[str, int]
    facts: dict[str, str]
    notes: tuple[str, ...]
    """one sentence per difference to the input files"""


def merge(paths: Sequence[str | Path], out_path: str | Path, told: Told = lambda *_: None) -> Merged:
    """Write `out_path` from the recordings at `paths`. `told(what, done, total)` is called with the progress.

    Strings, stacks and frames get new ids. Times count from the earliest recording's start, by the wall clock
    in each file. A process keeps its pid, unless an earlier file has a process with the same pid.

    Raises UsageError, NotEnoughDataError or UnreadableInputError for files that do not belong to one job or
    are not recordings of profiling-lab, LabError if the file cannot be written.
    """
    if len(paths) < 2:
        raise UsageError(f"expected two or more recordings to merge, not {len(paths)}")
    destination = Path(out_path)
    parts = [read_part(Path(path)) for path in paths]
    if any(part.path.resolve() == destination.resolve() for part in parts):
        raise UsageError(f"{destination} is one of the files to merge; choose another name")
    check_one_job(parts)
    temporary = destination.with_name(destination.name + ".tmp")
    try:
        merged = _write(temporary, parts, told)
        os.replace(temporary, destination)
    except LabError:
        raise
    except Exception as error:
        raise LabError(f"cannot write {destination}: {str(error).splitlines()[0]}") from error
    finally:  # after Ctrl-C too
        with contextlib.suppress(OSError):
            temporary.unlink()
    return merged


def _write(path: Path, parts: Sequence[Part], told: Told) -> Merged:
    import adbc_driver_sqlite.dbapi

    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=rw"
    connection = adbc_driver_sqlite.dbapi.connect(uri, autocommit=True)
    try:
        with connection.cursor() as cursor:
            # The file is deleted if anything fails, so it needs no journal. Temporary data stays in memory,
            # because a temporary file would be readable by others.
            for pragma in ("journal_mode = OFF", "synchronous = OFF", "temp_store = MEMORY"):
                cursor.execute(f"PRAGMA {pragma}")
            return _Merger(cursor, parts, told).run()
    finally:
        connection.close()


class _Merger:
    """Merges all files on one connection."""

    def __init__(self, cursor: Any, parts: Sequence[Part], told: Told) -> None:
        self._cursor, self._parts, self._told = cursor, parts, told
        self._strings: dict[str, int] = {}
        self._gpus: dict[str, int] = {}
        self._rows = dict.fromkeys((*NSYS_TABLES, *PYREC_TABLES), 0)
        self._pids = new_pids(parts)
        self._zero_ns = min(part.epoch_ns for part in parts)
        self._stacks = self._frames = 0
        self._total = self._done = 0

    def run(self) -> Merged:
        for name in (*NSYS_TABLES, *PYREC_TABLES):
            if name in (*ALWAYS_WRITTEN, "PYREC_PROCESS") or any(
                name in part.columns for part in self._parts
            ):
                self._cursor.execute(create_table(name))
        self._total = sum(sum(self._counts(part).values()) for part in self._parts)
        for part, pids in zip(self._parts, self._pids, strict=True):
            with self._attached(part):
                self._cursor.execute("BEGIN")
                self._copy(part, pids)
                self._cursor.execute("COMMIT")
        self._cursor.execute("BEGIN")
        facts = merged_facts(self._parts)
        self._finish(facts)
        self._cursor.execute("COMMIT")
        return Merged({name: count for name, count in self._rows.items() if count}, facts, self._notes())

    # ---- one file ----

    @contextlib.contextmanager
    def _attached(self, part: Part) -> Iterator[None]:
        self._cursor.execute(f"ATTACH 'file:{quote(os.fsencode(part.path.absolute()))}?mode=ro' AS part")
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # in a failed transaction the connection is closed anyway
                self._cursor.execute("DETACH part")

    def _counts(self, part: Part) -> dict[str, int]:
        with self._attached(part):
            return {
                name: self._number(f"SELECT count(*) FROM part.{name}")
                for name in ROW_BY_ROW
                if name in part.columns
            }

    def _copy(self, part: Part, pids: dict[int, int]) -> None:
        self._map_strings(part)
        moved = Moved(part.epoch_ns - self._zero_ns, pids, self._stacks, self._frames)
        own = None
        if len(part.processes) == 1:
            own = _moved_process(part.processes[0], pids)
        for name in ROW_BY_ROW:
            if name in part.columns:
                is_by_process = name == "PYREC_WINDOW"
                self._copy_rows(name, part, moved, own if is_by_process else None)
        for name in SAME_ROWS_ONCE:
            if name in part.columns:
                select = moved.select(name, part.columns[name], None)
                self._insert(name, f"{select} EXCEPT SELECT * FROM main.{name}")
        self._copy_gpus(part, pids)
        facts = [
            (_moved_process(process, pids), key, value)
            for process, pairs in part.facts.items()
            for key, value in pairs.items()
        ]
        self._insert_many("PYREC_PROCESS", facts)
        self._stacks = self._number("SELECT IFNULL(max(id), 0) FROM main.PYREC_STACK")
        self._frames = self._number("SELECT IFNULL(max(id), 0) FROM main.PYREC_FRAME")

    def _copy_rows(self, name: str, part: Part, moved: Moved, own: int | None) -> None:
        last = self._number(f"SELECT IFNULL(max(rowid), 0) FROM part.{name}")
        first = self._number(f"SELECT IFNULL(min(rowid), 0) FROM part.{name}")
        for begin in range(first, last + 1, _PIECE_ROWS):
            where = f"rowid >= {begin} AND rowid < {begin + _PIECE_ROWS}"
            self._done += self._insert(name, moved.select(name, part.columns[name], own, where))
            self._told("rows merged", self._done, self._total)

    def _map_strings(self, part: Part) -> None:
        """temp.names: the new id of each string of this file."""
        file = SqliteFile(part.path)
        try:
            (ids, codes), texts = file.coded_texts("SELECT id, CAST(value AS BLOB) FROM StringIds", 1)
            payloads = set[int]()
            if "jsonTextId" in part.columns.get("NVTX_EVENTS", ()):
                query = "SELECT DISTINCT jsonTextId FROM NVTX_EVENTS WHERE jsonTextId IS NOT NULL"
                payloads = set(file.integers(query, 1)[0].tolist())
        finally:
            file.close()
        old = {int(i): texts[code] for i, code in zip(ids.tolist(), codes.tolist(), strict=True)}
        new = {i: self._string(text) for i, text in old.items() if i not in payloads}
        for i in sorted(payloads & old.keys()):  # after the strings that they refer to
            new[i] = self._string(self._renamed(old[i], old))
        self._cursor.execute("DROP TABLE IF EXISTS temp.names")
        self._cursor.execute("CREATE TEMP TABLE names (old INTEGER PRIMARY KEY, new INTEGER)")
        if new:
            self._cursor.executemany("INSERT INTO temp.names VALUES (?, ?)", list(new.items()))

    def _renamed(self, payload: str, old: dict[int, str]) -> str:
        """Map the string ids inside a stack in nsys' form."""
        try:
            content = json.loads(payload)
            for stack in content.values():
                for frame in stack["Frames"]:
                    for key in ("Function", "File"):
                        frame[key] = self._string(old.get(frame[key], ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            return payload  # another kind of payload
        return json.dumps(content, separators=(",", ":"))

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings) + 1)

    def _copy_gpus(self, part: Part, pids: dict[int, int]) -> None:
        """Copy each GPU once, identified by its UUID."""
        if "TARGET_INFO_GPU" not in part.columns:
            return
        new: dict[int, int] = {}
        for number, uuid in self._all("SELECT id, uuid FROM part.TARGET_INFO_GPU ORDER BY id"):
            known = self._gpus.get(uuid) if uuid else None
            new[number] = known if known is not None else self._rows["TARGET_INFO_GPU"]
            if known is None:
                columns = ("?" if name == "id" else name for name in column_names("TARGET_INFO_GPU"))
                select = f"SELECT {', '.join(columns)} FROM part.TARGET_INFO_GPU WHERE id = ?"
                self._insert("TARGET_INFO_GPU", select, (new[number], number))
                if uuid:
                    self._gpus[uuid] = new[number]
        if "TARGET_INFO_CUDA_DEVICE" in part.columns:
            rows = self._all(
                "SELECT gpuId, cudaId, pid, uuid, numMultiprocessors FROM part.TARGET_INFO_CUDA_DEVICE"
            )
            moved = [(new.get(gpu, gpu), cuda, pids.get(pid, pid), *rest) for gpu, cuda, pid, *rest in rows]
            self._insert_many("TARGET_INFO_CUDA_DEVICE", moved)

    # ---- all of them ----

    def _finish(self, facts: dict[str, str]) -> None:
        self._insert_many("StringIds", [(number, text) for text, number in self._strings.items()])
        first = min(self._parts, key=lambda part: part.epoch_ns)
        end_ns = max(part.epoch_ns + part.duration_ns for part in self._parts)
        with self._attached(first):
            self._insert(
                "TARGET_INFO_SESSION_START_TIME", "SELECT * FROM part.TARGET_INFO_SESSION_START_TIME LIMIT 1"
            )
            self._insert(
                "ANALYSIS_DETAILS",
                "SELECT globalVid, ?, startTime, startTime + ? FROM part.ANALYSIS_DETAILS LIMIT 1",
                (end_ns - self._zero_ns, end_ns - self._zero_ns),
            )
        self._insert_many("PYREC_META", list(facts.items()))
        for name, rows in enum_rows().items():
            self._cursor.execute(create_table(name))
            self._cursor.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)

    def _notes(self) -> tuple[str, ...]:
        return tuple(
            f"process {old} of {part.name} is {new} here: another file has a process with the same pid"
            for part, pids in zip(self._parts, self._pids, strict=True)
            for old, new in pids.items()
        )

    # ---- SQL ----

    def _insert(self, name: str, select: str, parameters: tuple[int, ...] = ()) -> int:
        before = self._number("SELECT total_changes()")
        self._cursor.execute(f"INSERT INTO main.{name} {select}", parameters or None)
        count = self._number("SELECT total_changes()") - before
        self._rows[name] += count
        return count

    def _insert_many(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            places = ", ".join("?" * len(rows[0]))
            self._cursor.executemany(f"INSERT INTO main.{name} VALUES ({places})", rows)
            self._rows[name] += len(rows)

    def _number(self, query: str) -> int:
        return int(self._all(query)[0][0])

    def _all(self, query: str) -> list[tuple[Any, ...]]:
        self._cursor.execute(query)
        rows: list[tuple[Any, ...]] = self._cursor.fetchall()
        return rows


def _moved_process(process: int, pids: dict[int, int]) -> int:
    """The global id of a process with its new pid."""
    pid = pid_of(process)
    return (process & ~_PID_MASK) | (pids.get(pid, pid) << 24)
