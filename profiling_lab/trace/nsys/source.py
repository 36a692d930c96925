# SPDX-License-Identifier: Apache-2.0
"""Traces in the nsys schema, written by nsys or by our recorder."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace.columns import Operations, Overheads, Ranges
from profiling_lab.trace.nsys.calls import CALL_TABLE, CallTable, read_calls
from profiling_lab.trace.nsys.nvtx import NvtxRows, read_nvtx
from profiling_lab.trace.nsys.operations import TABLES, read_operations
from profiling_lab.trace.nsys.overheads import read_overheads
from profiling_lab.trace.nsys.parquet_folder import ParquetFolder
from profiling_lab.trace.nsys.ranges import read_ranges
from profiling_lab.trace.nsys.recorder_stacks import has_recorder_stacks
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.nsys.strings import Strings, read_strings
from profiling_lab.trace.process_ids import Registry, pid_of, process_part
from profiling_lab.trace.source import Recorder

# Any of these makes an SQLite file a trace in the nsys schema; tables without rows are not written.
_MARKS = (
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "META_DATA_CAPTURE",
    "PYREC_META",
    CALL_TABLE,
    *TABLES.values(),
)


class SqliteSource:
    """An open trace in the nsys schema: an SQLite file, or a folder of Parquet files.

    Raises UnreadableInputError if the file is not whole or is no trace.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = ParquetFolder(path) if path.is_dir() else SqliteFile(path)
        if not any(self.file.newest(mark) for mark in _MARKS):
            self.file.close()
            what = "a directory of tables" if path.is_dir() else "an SQLite file"
            raise UnreadableInputError(
                f"{path} is {what} but no GPU trace: it has none of the tables of an nsys export"
            )
        is_ours = self.file.columns("PYREC_META") or self.file.columns("PYREC_LAUNCH")
        self.recorder: Recorder = "profiling_lab" if is_ours else "nsys"
        self.processes = Registry()
        self.threads = Registry()

    def close(self) -> None:
        self.file.close()

    @cached_property
    def _nvtx(self) -> NvtxRows:
        return read_nvtx(self.file, with_marks=not has_recorder_stacks(self.file))

    @cached_property
    def strings(self) -> Strings:
        return read_strings(self.file)

    def operations(self) -> tuple[Operations, dict[str, int]]:
        return read_operations(self.file, self.strings, self.processes, self._only_process)

    def call_table(self) -> CallTable:
        return read_calls(
            self.file, self.strings, self.processes, self.threads, self._thread_names(), self._nvtx
        )

    def ranges(self) -> Ranges:
        return read_ranges(self._nvtx, self.processes, self.threads)

    def overheads(self) -> Overheads:
        return read_overheads(self.file, self.processes, self.threads)

    def recorder_facts(self) -> dict[str, str]:
        if not self.file.columns("PYREC_META"):
            return {}
        query = "SELECT CAST(name AS BLOB), CAST(COALESCE(value, '') AS BLOB) FROM PYREC_META"
        return {row[0]: row[1] for row in self.file.texts(query)}

    def process_facts(self) -> dict[int, dict[str, str]]:
        if not self.file.columns("PYREC_PROCESS"):
            return {}
        out: dict[int, dict[str, str]] = {}
        query = "SELECT CAST(IFNULL(globalPid, 0) AS TEXT), CAST(IFNULL(name, '') AS BLOB),"
        for process, name, value in self.file.texts(
            f"{query} CAST(IFNULL(value, '') AS BLOB) FROM PYREC_PROCESS"
        ):
            out.setdefault(pid_of(int(process)), {})[name] = value
        return out

    def _thread_names(self) -> dict[int, str]:
        """Names by global thread id."""
        if not self.file.columns("ThreadNames"):
            return {}
        rows = self.file.select("ThreadNames", {"nameId": 0, "globalTid": 0})
        return {
            tid: self.strings[name]
            for name, tid in zip(rows["nameId"].tolist(), rows["globalTid"].tolist(), strict=True)
        }

    def _only_process(self) -> int:
        """The process that rows without one belong to: that of the calls, if they all have the same."""
        table = self.file.newest(CALL_TABLE)
        if table is None:
            return 0
        tids = self.file.integers(f'SELECT DISTINCT IFNULL(globalTid, 0) FROM "{table}"', 1)[0]
        processes = set(process_part(tids).tolist())
        return processes.pop() if len(processes) == 1 else 0
