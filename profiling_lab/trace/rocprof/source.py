# SPDX-License-Identifier: Apache-2.0
"""Traces of rocprofv3. Times are nanoseconds since the machine was started."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from profiling_lab.trace.call_stacks import CallTable
from profiling_lab.trace.columns import U8, Operations, Ranges
from profiling_lab.trace.extras import Device, LaunchShapes, MemoryEvents
from profiling_lab.trace.facts import Gpu, TraceInfo
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.process_ids import Registry
from profiling_lab.trace.rocprof.info import rocprof_info
from profiling_lab.trace.rocprof.json_file import read_json
from profiling_lab.trace.rocprof.records import Records
from profiling_lab.trace.rocprof.rocpd import read_rocpd
from profiling_lab.trace.rocprof.tables import (
    range_styles,
    read_calls,
    read_launch_shapes,
    read_memory,
    read_operations,
    read_ranges,
)
from profiling_lab.trace.source import Recorder, Source, Tables

_IMPOSSIBLE = "GPU operations at impossible times (skipped)"


class RocprofSource(Source):
    """An open trace of rocprofv3, read completely."""

    recorder: Recorder = "rocprofv3"

    def __init__(self, path: Path, records: Records) -> None:
        self.path = path
        self.processes = Registry()
        self.threads = Registry()
        self._records, self._skipped = records.possible()

    @classmethod
    def of_database(cls, file: SqliteFile) -> RocprofSource:
        try:
            return cls(file.path, read_rocpd(file))
        finally:
            file.close()

    @classmethod
    def of_json(cls, path: Path) -> RocprofSource:
        return cls(path, read_json(path))

    def why_empty(self) -> str:
        return "nothing ran on the GPU, or rocprofv3 ran without `--kernel-trace`"

    def operations(self) -> tuple[Operations, dict[str, int]]:
        operations, repairs = read_operations(self._records, self.processes)
        return operations, repairs | ({_IMPOSSIBLE: self._skipped} if self._skipped else {})

    def call_table(self) -> CallTable:
        return read_calls(self._records, self.processes, self.threads)

    def ranges(self) -> Ranges:
        return read_ranges(self._records, self.processes, self.threads)

    def info(self, whole: Tables) -> TraceInfo:
        return rocprof_info(self._records, self.gpus(), whole)

    @cached_property
    def _gpus(self) -> dict[int, Gpu]:
        """By number. Several processes see the same GPUs, or the first of them all sees those of its own."""
        every = sorted(
            ((agent.logical_node_type_id, agent) for agent in self._records.agents.values() if agent.is_gpu),
            key=lambda numbered: numbered[0],
        )
        return {number: Gpu(a.title, "", a.cu_count, a.memory_bytes) for number, a in every}

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(self._gpus.values())

    def devices(self, used: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Device]:
        known = {
            number: Device(gpu.name, None, gpu.multiprocessors or None, None, None, None, None, None)
            for number, gpu in self._gpus.items()
        }
        return {(process, number): known[number] for process, number in used if number in known}

    def wall_clock(self, whole: Tables) -> int | None:
        return None

    def launch_shapes(self, whole: Tables) -> LaunchShapes | None:
        return read_launch_shapes(self._records)

    def range_styles(self, whole: Tables) -> U8:
        return range_styles(self._records)

    def memory(self) -> MemoryEvents | None:
        return read_memory(self._records, self.processes)
