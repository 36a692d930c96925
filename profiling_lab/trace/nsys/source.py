# SPDX-License-Identifier: Apache-2.0
"""Traces in the nsys schema, written by nsys or by our recorder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace.call_stacks import CallTable
from profiling_lab.trace.columns import I32, U8, Operations, Overheads, Ranges, Syncs
from profiling_lab.trace.extras import (
    CollectiveFacts,
    CounterSamples,
    Device,
    EnergySamples,
    HostSamples,
    HostSpans,
    InputShapes,
    LaunchShapes,
    MemoryEvents,
    Stream,
    WorkRows,
)
from profiling_lab.trace.facts import Gpu, TraceInfo
from profiling_lab.trace.nsys import GZIP
from profiling_lab.trace.nsys.calls import CALL_TABLE, read_calls
from profiling_lab.trace.nsys.devices import read_devices, read_gpus
from profiling_lab.trace.nsys.host_spans import read_host_events, read_off_cpu, read_system_calls
from profiling_lab.trace.nsys.info import sqlite_info
from profiling_lab.trace.nsys.input_shapes import read_input_shapes
from profiling_lab.trace.nsys.launch_shapes import read_launch_shapes
from profiling_lab.trace.nsys.memory.usage import read_memory
from profiling_lab.trace.nsys.nvtx import NvtxRows, read_nvtx
from profiling_lab.trace.nsys.operations import TABLES, read_operations
from profiling_lab.trace.nsys.overheads import read_overheads
from profiling_lab.trace.nsys.pauses import read_pauses
from profiling_lab.trace.nsys.range_styles import read_range_styles
from profiling_lab.trace.nsys.ranges import read_ranges
from profiling_lab.trace.nsys.recorder.counters import read_counters
from profiling_lab.trace.nsys.recorder.energy import read_energy
from profiling_lab.trace.nsys.recorder.work import read_work
from profiling_lab.trace.nsys.recorder_stacks import has_recorder_stacks
from profiling_lab.trace.nsys.samples import read_samples
from profiling_lab.trace.nsys.source_texts import read_source_texts
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.nsys.streams import read_streams
from profiling_lab.trace.nsys.strings import Strings, read_strings
from profiling_lab.trace.nsys.syncs import read_syncs
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.process_ids import Registry, pid_of, process_part
from profiling_lab.trace.source import Recorder, Source, Tables
from profiling_lab.trace.spans import Pauses

if TYPE_CHECKING:
    from profiling_lab.trace.memory_history import MemoryHistory

# A file with any of these tables is a trace in the nsys schema; tables without rows are not written.
_MARKS = (
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "META_DATA_CAPTURE",
    "PYREC_META",
    CALL_TABLE,
    *TABLES.values(),
)


class SqliteSource(Source):
    """An open trace in the nsys schema: an SQLite file, or a folder of Parquet files.

    Raises UnreadableInputError if the file is truncated or is not a trace.
    """

    def __init__(self, path: Path, file: SqliteFile | None = None) -> None:
        self.path = path
        self.file = file or open_file(path)
        if not any(self.file.newest(mark) for mark in _MARKS):
            self.file.close()
            what = "a directory of tables" if path.is_dir() else "an SQLite file"
            raise UnreadableInputError(
                f"{path} is {what} but not a GPU trace: it has none of the tables of an nsys export"
            )
        is_ours = self.file.columns("PYREC_META") or self.file.columns("PYREC_LAUNCH")
        self.recorder: Recorder = "profiling_lab" if is_ours else "nsys"
        self.processes = Registry()
        self.threads = Registry()

    def close(self) -> None:
        self.file.close()

    def why_empty(self) -> str:
        if self.recorder == "profiling_lab":
            return "nothing ran on the GPU while it was recorded"
        return "nothing ran on the GPU, or nsys ran without `--trace=cuda`"

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
            self.file, self.strings, self.processes, self.threads, self._names_by_tid(), self._nvtx
        )

    def ranges(self) -> Ranges:
        return read_ranges(self._nvtx, self.processes, self.threads)

    def overheads(self) -> Overheads:
        return read_overheads(self.file, self.processes, self.threads)

    def pauses(self, processes: I32) -> Pauses:
        return read_pauses(self.file, processes, self.processes.ids)

    def info(self, whole: Tables) -> TraceInfo:
        return sqlite_info(self.file, self._facts, whole)

    def gpus(self) -> tuple[Gpu, ...]:
        return read_gpus(self.file)

    def devices(self, used: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Device]:
        return read_devices(self.file, self.processes, used)

    def wall_clock(self, whole: Tables) -> int | None:
        if "utcEpochNs" not in self.file.columns("TARGET_INFO_SESSION_START_TIME"):
            return None
        started = self.file.select("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": 0})["utcEpochNs"]
        return int(started[0]) if len(started) and started[0] > 0 else None

    def streams(self) -> dict[tuple[int, int], Stream]:
        return read_streams(self.file)

    def syncs(self, whole: Tables) -> Syncs:
        return read_syncs(self.file, self.processes, whole)

    def launch_shapes(self, whole: Tables) -> LaunchShapes | None:
        return read_launch_shapes(self.file, whole)

    def input_shapes(self, whole: Tables) -> InputShapes | None:
        return read_input_shapes(self.file, whole)

    def range_styles(self, whole: Tables) -> U8:
        return read_range_styles(self.file, whole)

    def memory(self) -> MemoryEvents | None:
        return read_memory(self.file, self.processes)

    def memory_history(self) -> tuple[MemoryHistory, ...]:
        from profiling_lab.trace.nsys.memory.history import read_memory_history  # few tables need it

        return read_memory_history(self.file, self.processes)

    def work(self) -> WorkRows | None:
        return read_work(self.file, self.strings, self.processes, self.threads)

    def energy(self) -> tuple[EnergySamples, ...]:
        return read_energy(self.file, self.processes)

    def counters(self) -> tuple[CounterSamples, ...]:
        return read_counters(self.file, self.processes)

    def collectives(self, whole: Tables, rows: npt.NDArray[np.intp]) -> list[CollectiveFacts | None]:
        from profiling_lab.trace.nsys.nccl_calls import read_collectives  # few tables need it

        return read_collectives(self.file, self.threads, whole, rows)

    def system_calls(self) -> HostSpans:
        return read_system_calls(self.file, self.strings, self.processes, self.threads)

    def off_cpu(self) -> HostSpans:
        return read_off_cpu(self.file, self.processes, self.threads)

    def host_events(self) -> HostSpans:
        return read_host_events(self.file, self.strings, self.processes, self.threads)

    def samples(self, ownership: Ownership) -> HostSamples:
        # Our recorder has a mark for every call, so search them only if there are samples.
        is_ours = self.recorder == "profiling_lab"
        with_python = not is_ours or self._facts.get("samples_per_second", "") != "0"
        return read_samples(self.file, self.strings, self.processes, self.threads, ownership, with_python)

    def job_facts(self) -> Mapping[str, object]:
        return self._facts

    def recorder_facts(self) -> dict[str, str]:
        return self._facts

    @cached_property
    def _facts(self) -> dict[str, str]:
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

    def source_texts(self) -> dict[tuple[str, int], str]:
        return read_source_texts(self.file, self.strings)

    def thread_names(self) -> dict[int, str]:
        known = self.threads.numbers
        return {known[tid]: name for tid, name in self._names_by_tid().items() if tid in known}

    def _names_by_tid(self) -> dict[int, str]:
        if not self.file.columns("ThreadNames"):
            return {}
        rows = self.file.select("ThreadNames", {"nameId": 0, "globalTid": 0})
        return {
            tid: self.strings[name]
            for name, tid in zip(rows["nameId"].tolist(), rows["globalTid"].tolist(), strict=True)
        }

    def _only_process(self) -> int:
        """The process of rows without one: that of all calls, if it is the same."""
        table = self.file.newest(CALL_TABLE)
        if table is None:
            return 0
        tids = self.file.integers(f'SELECT DISTINCT IFNULL(globalTid, 0) FROM "{table}"', 1)[0]
        processes = set(process_part(tids).tolist())
        return processes.pop() if len(processes) == 1 else 0


def open_file(path: Path) -> SqliteFile:
    if path.is_dir():
        from profiling_lab.trace.nsys.parquet_folder import ParquetFolder  # it loads pyarrow's Parquet reader

        return ParquetFolder(path)
    with path.open("rb") as file:
        is_packed = file.read(len(GZIP)) == GZIP
    if is_packed:
        from profiling_lab.trace.nsys.packed_file import PackedFile

        return PackedFile(path)
    return SqliteFile(path)
