# SPDX-License-Identifier: Apache-2.0
"""Traces of XLA's profiler. Times are nanoseconds since the profile began, or since 1970."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from profiling_lab.trace.call_stacks import CallTable
from profiling_lab.trace.columns import U8, Operations, Ranges, full
from profiling_lab.trace.extras import (
    Device,
    LaunchShapes,
    MemoryEvents,
    Style,
)
from profiling_lab.trace.facts import Gpu, TraceInfo
from profiling_lab.trace.process_ids import Registry
from profiling_lab.trace.source import Recorder, Source, Tables
from profiling_lab.trace.xplane.info import devices, gpus, started_ns, xplane_info
from profiling_lab.trace.xplane.space import GPU, TPU, read_space
from profiling_lab.trace.xplane.tables import SpaceTables

_PLAUSIBLE_EPOCH_NS = 10**18  # September 2001: smaller times count from the start of the profile


class XPlaneSource(Source):
    """An XPlane file, read completely."""

    recorder: Recorder = "XLA"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes = Registry()
        self.threads = Registry()
        self._space = read_space(path)
        self._tables = SpaceTables(self._space, self.processes, self.threads)

    def why_empty(self) -> str:
        if self._space.named(TPU):
            return "its device is a TPU, whose events are not supported"
        if self._space.named(GPU):
            return "nothing ran on the GPU while it was recorded"
        return "the program ran on the CPU: it has no plane of a GPU"

    def operations(self) -> tuple[Operations, dict[str, int]]:
        return self._tables.operations()

    def call_table(self) -> CallTable:
        return self._tables.calls

    def ranges(self) -> Ranges:
        return self._tables.ranges()

    def info(self, whole: Tables) -> TraceInfo:
        return xplane_info(self._space, self._tables, whole)

    def gpus(self) -> tuple[Gpu, ...]:
        return gpus(self._space)

    def devices(self, used: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Device]:
        known = devices(self._space)
        return {(process, number): known[number] for process, number in used if number in known}

    def wall_clock(self, whole: Tables) -> int | None:
        starts = whole.operations.start_ns
        first = int(starts.min()) if len(starts) else 0
        return 0 if first > _PLAUSIBLE_EPOCH_NS else started_ns(self._space)

    def thread_names(self) -> dict[int, str]:
        known = self.threads.numbers
        return {known[tid]: name for tid, name in self._tables.thread_names.items() if tid in known}

    def launch_shapes(self, whole: Tables) -> LaunchShapes | None:
        return self._tables.launch_shapes()

    def range_styles(self, whole: Tables) -> U8:
        return full(len(whole.ranges), Style.PUSH_POP, np.uint8)

    def memory(self) -> MemoryEvents | None:
        return self._tables.memory()
