# SPDX-License-Identifier: Apache-2.0
"""A report of Nsight Compute as a trace of its own, where there is no recording of the program.

ncu runs each launch alone and several times, so the report knows how long a launch takes and nothing of what
came between two of them. Here one follows the other: sums of kernels are right, and there is no idle time to
be asked for. Only the rules about counters use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from profiling_lab.analysis.ncu.report import DURATION, Report, ReportError, read
from profiling_lab.trace.call_stacks import CallTable
from profiling_lab.trace.columns import U8, OperationKind, Operations, Ranges
from profiling_lab.trace.extras import Device, LaunchShape, LaunchShapes
from profiling_lab.trace.facts import Gpu, TraceInfo
from profiling_lab.trace.nothing import FLAGS, no_calls, no_ranges
from profiling_lab.trace.process_ids import Registry
from profiling_lab.trace.source import Recorder, Source, Tables
from profiling_lab.trace.stacks import no_stacks
from profiling_lab.trace.trace import Trace

REPORTS = (".csv", ".ncu-rep")
_REGISTERS = "launch__registers_per_thread"


def trace_of_report(path: Path) -> tuple[Trace, Report]:
    """Raises ReportError, also if a launch has no duration."""
    report = read(path)
    missing = next((each for each in report.launches if not each.has(DURATION)), None)
    if missing is not None:
        raise ReportError(
            f"{report.source}: launch {missing.number} ({missing.function}) has no {DURATION}; profile with "
            "it, or give a recording of the program and this report with --ncu"
        )
    return Trace(NcuSource(path, report)), report


class NcuSource(Source):
    """The launches of a report, one after the other."""

    recorder: Recorder = "ncu"

    def __init__(self, path: Path, report: Report) -> None:
        self.path = path
        self.processes, self.threads = Registry(), Registry()
        self._report = report

    def why_empty(self) -> str:
        return "ncu has profiled no kernel"

    def operations(self) -> tuple[Operations, dict[str, int]]:
        launches = self._report.launches
        count = len(launches)
        end_ns = np.cumsum([round(each.duration_ns) for each in launches]).astype(np.int64)
        start_ns = np.concatenate(([0], end_ns[:-1])).astype(np.int64)
        names = tuple(dict.fromkeys(each.kernel for each in launches))
        row = {name: number for number, name in enumerate(names)}
        short = {each.kernel: each.function for each in launches}
        none = np.zeros(count, dtype=np.uint8)
        operations = Operations(
            kind=np.full(count, OperationKind.KERNEL, dtype=np.uint8),
            start_ns=start_ns,
            end_ns=end_ns,
            process=self.processes.number(np.zeros(count, dtype=np.int64)),
            device=np.zeros(count, dtype=np.int32),
            stream=np.zeros(count, dtype=np.int64),
            correlation=np.full(count, -1, dtype=np.int64),
            name=np.array([row[each.kernel] for each in launches], dtype=np.int32),
            size_bytes=np.zeros(count, dtype=np.int64),
            names=names,
            short_names=tuple(short[name] for name in names),
            source_memory=none,
            target_memory=none,
        )
        return operations, {}

    def call_table(self) -> CallTable:
        return no_calls(no_stacks())

    def ranges(self) -> Ranges:
        return no_ranges()

    def info(self, whole: Tables) -> TraceInfo:
        return TraceInfo(
            path=str(self.path),
            file_bytes=self.path.stat().st_size,
            product="Nsight Compute",
            schema="",
            started_utc="",
            duration_ns=None,
            gpus=self.gpus(),
            driver="",
            processes=(),
            recorded=(),
            recorder=(),
            options=(),
            method="each launch alone, replayed",
            ranks=(),
            events=None,
            overhead_ns=None,
            warnings=(),
        )

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(Gpu(name, "", 0, 0) for name in dict.fromkeys(k.device for k in self._report.launches))

    def devices(self, used: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Device]:
        return {}

    def wall_clock(self, whole: Tables) -> int | None:
        return None

    def launch_shapes(self, whole: Tables) -> LaunchShapes | None:
        shapes = [
            LaunchShape(each.grid, each.block, _whole(each.metrics.get(_REGISTERS)), None)
            for each in self._report.launches
        ]
        different = tuple(dict.fromkeys(shapes))
        return LaunchShapes(np.array([different.index(each) for each in shapes], dtype=np.int32), different)

    def range_styles(self, whole: Tables) -> U8:
        return FLAGS


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
