# SPDX-License-Identifier: Apache-2.0
"""A recorded GPU trace as columns, read on first use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import replace
from profiling_lab.trace.attribution import Attribution, attribute
from profiling_lab.trace.call_stacks import CallTable, StacksFound
from profiling_lab.trace.columns import (
    FARTHEST_NS,
    I32,
    U8,
    Calls,
    Operations,
    Overheads,
    Ranges,
    Syncs,
    dense,
    full,
    rows_of,
)
from profiling_lab.trace.extras import Device, HostSamples, InputShapes, LaunchShapes, WorkRows
from profiling_lab.trace.facts import Gpu
from profiling_lab.trace.formats import open_source
from profiling_lab.trace.operation_classes import device_tracks, operation_classes
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.process_ids import pid_of, tid_of
from profiling_lab.trace.source import Recorder, Source
from profiling_lab.trace.spans import Pauses, Rows, Window
from profiling_lab.trace.stacks import Stacks
from profiling_lab.trace.window import WindowSelection, window


class Trace:
    """A GPU trace. Open it with `Trace.open`; it is a context manager, and reading never changes the file.

    Rows of `operations`, `calls` and `ranges` keep the order of the file. Times are integer nanoseconds on
    the clock of the file.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.path = source.path
        self.window: Window | None = None
        """the selected part of the recording; None for all of it"""
        self.repairs: dict[str, int] = {}
        """the number of repaired or skipped rows by kind of damage; complete after the columns were read"""
        self._samples: dict[Ownership, HostSamples] = {}

    @classmethod
    def open(cls, path: str | Path) -> Trace:
        """Open a trace, whatever its file name: our recording, SQLite from nsys, JSON from torch.profiler,
        XPlane files of JAX, or a database or JSON of rocprofv3.

        Folders of Parquet or Arrow files from nsys (`nsys export --type=parquetdir`) work too.

        Raises UnreadableInputError if the file does not exist or is not a trace.
        """
        return cls(open_source(Path(path)))

    def windowed(self, wanted: WindowSelection) -> Trace:
        """The selected part of the trace, as a trace; this trace itself if everything is selected.

        Raises UsageError and NotEnoughDataError as `window.window`, the latter also if the part has neither a
        GPU operation nor a sample. With samples alone, the first look at its operations raises.
        """
        return WindowedTrace(self, window(self, wanted)) if wanted else self

    @property
    def whole(self) -> Trace:
        """The trace that this one is a part of, or itself."""
        return self

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.source.close()

    @property
    def recorder(self) -> Recorder:
        """The recorder that wrote the file."""
        return self.source.recorder

    @property
    def is_ours(self) -> bool:
        return self.recorder == "profiling_lab"

    @cached_property
    def recorder_facts(self) -> dict[str, str]:
        """The metadata of our recorder, {} for any other."""
        return self.source.recorder_facts()

    @cached_property
    def process_facts(self) -> dict[int, dict[str, str]]:
        """The metadata of our recorder per process id of a merged recording; {} for any other."""
        return self.source.process_facts()

    @cached_property
    def job_facts(self) -> Mapping[str, object]:
        """`rank` and `world_size` if the recorder stored them, not validated."""
        return self.source.job_facts()

    def samples(self, ownership: Ownership) -> HostSamples:
        """The samples of host threads. They need no GPU operation."""
        if ownership not in self._samples:
            self._samples[ownership] = self.source.samples(ownership)
        return self._samples[ownership]

    @cached_property
    def _call_table(self) -> CallTable:
        return self.source.call_table()

    @property
    def calls(self) -> Calls:
        return self._call_table.calls

    @property
    def operation_rows(self) -> npt.NDArray[np.intp]:
        """Per operation its row in the whole trace, because extra data is read for the whole file."""
        return np.arange(len(self.operations))

    @property
    def call_rows(self) -> npt.NDArray[np.intp]:
        """Per call its row in the whole trace."""
        return np.arange(len(self.calls))

    @property
    def range_rows(self) -> npt.NDArray[np.intp]:
        """Per range its row in the whole trace."""
        return np.arange(len(self.ranges))

    @property
    def calls_inside(self) -> npt.NDArray[np.bool_]:
        """Per call, whether it is in the window; others are included because they launched work inside."""
        return np.ones(len(self.calls), dtype=bool)

    @property
    def stacks(self) -> Stacks:
        return self._call_table.stacks

    @property
    def stacks_found(self) -> StacksFound:
        """The origin of the Python stacks of the calls, and how many could not be used."""
        return self._call_table.found

    @cached_property
    def operations(self) -> Operations:
        operations, repairs = self.source.operations()
        self.repairs |= repairs
        return operations

    @cached_property
    def classes(self) -> I32:
        """The OperationClass of each GPU operation."""
        return operation_classes(self.operations)

    @cached_property
    def ranges(self) -> Ranges:
        return self.source.ranges()

    @property
    def ranges_inside(self) -> npt.NDArray[np.bool_]:
        """Per range, whether it is in the window; others are included because they launched work inside."""
        return np.ones(len(self.ranges), dtype=bool)

    @cached_property
    def overheads(self) -> Overheads:
        return self.source.overheads()

    @cached_property
    def attribution(self) -> Attribution:
        """The stack of each GPU operation.

        Raises NotEnoughDataError in a trace without operations.
        """
        if not len(self.operations):
            raise NotEnoughDataError(self.why_empty())
        return attribute(self.operations, self.calls, self.ranges, self.stacks)

    def why_empty(self) -> str:
        """The sentence for a trace without any GPU operation."""
        return f"{self.path} holds no GPU operation: {self.source.why_empty()}"

    @cached_property
    def pauses(self) -> Pauses:
        """The pauses of the recording per process that used a GPU, in which nothing was recorded."""
        return self.source.pauses(np.sort(dense(self.whole.operations.process)[1]))

    @cached_property
    def syncs(self) -> Syncs:
        """Synchronisations recorded by CUPTI, without those at impossible times."""
        syncs = self.source.syncs(self)
        return rows_of(syncs, (syncs.start_ns > -FARTHEST_NS) & (syncs.end_ns < FARTHEST_NS))

    @cached_property
    def launch_shapes(self) -> LaunchShapes | None:
        """The launch configurations of kernels."""
        return self.source.launch_shapes(self)

    @cached_property
    def input_shapes(self) -> InputShapes | None:
        """Input shapes of operators, recorded by emit_nvtx and torch.profiler with record_shapes=True."""
        return self.source.input_shapes(self)

    @cached_property
    def work(self) -> WorkRows | None:
        """What the operators of one step must do, if the recorder counted it."""
        return self.source.work()

    @cached_property
    def range_styles(self) -> U8:
        """The Style per range."""
        return self.source.range_styles(self)

    @cached_property
    def source_texts(self) -> dict[tuple[str, int], str]:
        """By file and line the text of the line of code; {} if the file has none."""
        return self.source.source_texts()

    @cached_property
    def devices(self) -> dict[tuple[int, int], Device]:
        """By (process number, CUDA ordinal) the GPUs that ran operations, if the file describes them."""
        return self.source.devices(device_tracks(self.operations)[1])

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of the machine, as far as the file describes them."""
        return self.source.gpus()

    @cached_property
    def first_ns(self) -> int:
        """The start of the first call or GPU operation of the whole recording, without any the first sample;
        shown times count from it.
        """
        columns = [self.whole.operations.start_ns, self.whole.calls.start_ns]
        if not any(map(len, columns)):
            columns = [self.whole.samples(Ownership()).time_ns]
        return min((int(column.min()) for column in columns if len(column)), default=0)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids by process number, from the tables read so far."""
        return tuple(pid_of(i) for i in self.source.processes.ids)

    @property
    def tids(self) -> tuple[int, ...]:
        """Operating-system thread ids by thread number, from the tables read so far."""
        return tuple(tid_of(i) for i in self.source.threads.ids)


class WindowedTrace(Trace):
    """The part of `whole` in a window. Stacks and attribution are those of the whole trace, because the
    forward lines of backward kernels may be outside.

    Operations are clipped to the window; one that spans several parts of the window appears several times.
    Calls and ranges are included unclipped if any part is inside, and also the calls that launched operations
    of the window, with the ranges around them; see `calls_inside` and `ranges_inside`.

    Raises NotEnoughDataError if the window has neither a GPU operation nor a sample; with samples alone,
    `operations` and what is made of them raise it.
    """

    def __init__(self, whole: Trace, window: Window) -> None:
        super().__init__(whole.source)
        self._whole = whole
        self.window = window
        self.repairs = whole.repairs
        if not len(self._operation_parts[0]) and not len(self.samples(Ownership())):
            raise NotEnoughDataError(
                self.why_empty()
                if len(whole.operations)
                else f"{self.path} has no sample in this window ({window.text}), and no GPU operation at all"
            )

    @property
    def whole(self) -> Trace:
        return self._whole

    @cached_property
    def _operation_parts(self) -> tuple[Rows, Operations]:
        """Rows of the whole trace, and their parts inside the window."""
        operations, window = self.whole.operations, self._of_window
        row, start_ns, end_ns = window.gpu.cut(operations.process, operations.start_ns, operations.end_ns)
        if window.devices:
            kept = np.isin(operations.device[row], window.devices)
            row, start_ns, end_ns = row[kept], start_ns[kept], end_ns[kept]
        order = np.argsort(row, kind="stable")
        row = row[order]
        parts = replace(rows_of(operations, row), start_ns=start_ns[order], end_ns=end_ns[order])
        return row, parts

    @property
    def _of_window(self) -> Window:
        assert self.window is not None
        return self.window

    @cached_property
    def operations(self) -> Operations:
        row, parts = self._operation_parts
        if not len(row):
            raise NotEnoughDataError(self.why_empty())
        return parts

    @property
    def operation_rows(self) -> Rows:
        return self._operation_parts[0]

    @property
    def call_rows(self) -> Rows:
        return self._call_rows[0]

    @property
    def range_rows(self) -> Rows:
        return self._range_rows[0]

    @cached_property
    def _call_rows(self) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """The included rows of the whole trace's calls, and which of them are inside."""
        calls, found = self.whole.calls, self.whole.attribution
        inside = self._of_window.host.touch(calls.process, calls.start_ns, calls.end_ns)
        launching = found.call[self._operation_parts[0]]
        launches = np.zeros(len(calls), dtype=bool)
        launches[launching[launching >= 0]] = True
        if self._of_window.devices:
            # Calls that launched only on other devices are not included.
            other = found.call[~np.isin(self.whole.operations.device, self._of_window.devices)]
            elsewhere = np.zeros(len(calls), dtype=bool)
            elsewhere[other[other >= 0]] = True
            inside &= ~elsewhere | launches
        rows = np.flatnonzero(inside | launches)
        return rows, inside[rows]

    @cached_property
    def _call_table(self) -> CallTable:
        whole = self.whole._call_table
        return replace(whole, calls=rows_of(whole.calls, self._call_rows[0]))

    @property
    def calls_inside(self) -> npt.NDArray[np.bool_]:
        return self._call_rows[1]

    @cached_property
    def _range_rows(self) -> tuple[Rows, npt.NDArray[np.bool_]]:
        ranges = self.whole.ranges
        inside = self._of_window.host.touch(ranges.process, ranges.start_ns, ranges.end_ns)
        around = self.whole.attribution.range[self._operation_parts[0]]
        needed = inside.copy()
        needed[around[around >= 0]] = True
        rows = np.flatnonzero(needed)
        return rows, inside[rows]

    @cached_property
    def ranges(self) -> Ranges:
        return rows_of(self.whole.ranges, self._range_rows[0])

    @property
    def ranges_inside(self) -> npt.NDArray[np.bool_]:
        return self._range_rows[1]

    def samples(self, ownership: Ownership) -> HostSamples:
        whole = self.whole.samples(ownership)
        return rows_of(whole, self._of_window.host.touch(whole.process, whole.time_ns, whole.time_ns))

    @cached_property
    def source_texts(self) -> dict[tuple[str, int], str]:
        return self.whole.source_texts

    @cached_property
    def work(self) -> WorkRows | None:
        return self.whole.work

    @cached_property
    def overheads(self) -> Overheads:
        whole = self.whole.overheads
        return rows_of(whole, self._of_window.host.touch(whole.process, whole.start_ns, whole.end_ns))

    @cached_property
    def syncs(self) -> Syncs:
        whole = self.whole.syncs
        return rows_of(whole, self._of_window.host.touch(whole.process, whole.start_ns, whole.end_ns))

    @cached_property
    def launch_shapes(self) -> LaunchShapes | None:
        whole = self.whole.launch_shapes
        return whole and rows_of(whole, self.operation_rows)

    @cached_property
    def input_shapes(self) -> InputShapes | None:
        whole = self.whole.input_shapes
        return whole and rows_of(whole, self.range_rows)

    @cached_property
    def range_styles(self) -> U8:
        return np.asarray(self.whole.range_styles[self.range_rows], dtype=np.uint8)

    @cached_property
    def attribution(self) -> Attribution:
        found = rows_of(self.whole.attribution, self._operation_parts[0])
        return replace(
            found,
            call=_renumbered(found.call, self._call_rows[0], len(self.whole.calls)),
            range=_renumbered(found.range, self._range_rows[0], len(self.whole.ranges)),
        )

    def why_empty(self) -> str:
        """The sentence for a window without any GPU operation."""
        if not len(self.whole.operations):
            return self.whole.why_empty()
        operations, zero = self.whole.operations, self.first_ns
        first, last = (int(t) - zero for t in (operations.start_ns.min(), operations.end_ns.max()))
        return (
            f"{self.path} has no GPU operation in this window ({self._of_window.text}); the recording has "
            f"{len(operations):,} of them, from {first / 1e9:.6f}s to {last / 1e9:.6f}s"
        )


def _renumbered(old: I32, rows: Rows, size: int) -> I32:
    """Convert row numbers of the whole table to row numbers of its `rows`; -1 stays."""
    number = full(size + 1, -1, np.int32)
    number[rows] = np.arange(len(rows), dtype=np.int32)
    return np.asarray(number[old], dtype=np.int32)
