# SPDX-License-Identifier: Apache-2.0
"""A recorded GPU trace as columns, read when they are first asked for."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from profiling_lab.errors import NotEnoughDataError, UnreadableInputError, UsageError
from profiling_lab.trace.attribution import Attribution, attribute
from profiling_lab.trace.call_stacks import StacksFound
from profiling_lab.trace.columns import Calls, Operations, Overheads, Ranges
from profiling_lab.trace.kineto.pieces import BOM, GZIP, unpacked_head
from profiling_lab.trace.kineto.source import ChromeSource
from profiling_lab.trace.nsys.calls import CallTable
from profiling_lab.trace.nsys.source import SqliteSource
from profiling_lab.trace.nsys.sqlite_file import MAGIC, SqliteFile
from profiling_lab.trace.pauses import Pauses, read_pauses
from profiling_lab.trace.process_ids import pid_of, tid_of
from profiling_lab.trace.source import Recorder, Source
from profiling_lab.trace.spans import Window
from profiling_lab.trace.stacks import Stacks

if TYPE_CHECKING:
    from profiling_lab.trace.window import Wanted

_HEAD_BYTES = 4096


class Trace:
    """A GPU trace. Open one with `Trace.open`; it is a context manager, and reading never alters the file.

    Rows of `operations`, `calls` and `ranges` keep the order of the file. Times are integer nanoseconds on
    the clock of the file.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.path = source.path
        self.window: Window | None = None
        """the part of the recording that this is; None for all of it"""
        self.repairs: dict[str, int] = {}
        """rows that were repaired or skipped, by what was wrong; complete once the columns were read"""

    @classmethod
    def open(cls, path: str | Path) -> Trace:
        """Open a trace by what is in it, whatever its name: ours, nsys' SQLite, or torch.profiler's JSON.

        nsys' folders of Parquet or Arrow files (`nsys export --type=parquetdir`) are opened as well.

        Raises UnreadableInputError if there is no such file or it is no trace.
        """
        path = Path(path)
        if path.is_dir():
            return cls(SqliteSource(path))
        head = _head(path)
        if head.startswith(MAGIC):
            return cls(SqliteSource(path))
        if head.removeprefix(BOM).lstrip()[:1] in (b"{", b"["):
            return cls(ChromeSource(path))
        if path.suffix in (".nsys-rep", ".qdrep"):
            raise UnreadableInputError(
                f"{path} is an nsys report; convert it first: "
                f"nsys export --type=sqlite --include-json=true {path}"
            )
        raise UnreadableInputError(
            f"{path} is no trace: expected an SQLite file from `profiling-lab record` or "
            "`nsys export --type=sqlite`, or the JSON of torch.profiler"
        )

    def windowed(self, wanted: Wanted) -> Trace:
        """The part of the trace that was asked for, itself a trace; this one where all of it was.

        Raises UsageError and NotEnoughDataError as `window.window`, the latter too if the part holds no GPU
        operation.
        """
        from profiling_lab.trace.window import window
        from profiling_lab.trace.windowed import WindowedTrace

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
        """Whose file this is."""
        return self.source.recorder

    @property
    def is_ours(self) -> bool:
        return self.recorder == "profiling_lab"

    @property
    def file(self) -> SqliteFile:
        """The SQLite file behind the trace. Raises UsageError where there is none."""
        if isinstance(self.source, SqliteSource):
            return self.source.file
        raise UsageError(f"{self.path} is no SQLite file but a trace of {self.recorder}")

    @cached_property
    def recorder_facts(self) -> dict[str, str]:
        """What our recorder noted about itself, {} for any other."""
        return self.source.recorder_facts()

    @cached_property
    def process_facts(self) -> dict[int, dict[str, str]]:
        """What our recorder noted in each process of a merged recording, by process id; {} in any other."""
        return self.source.process_facts() if isinstance(self.source, SqliteSource) else {}

    @cached_property
    def _call_table(self) -> CallTable:
        return self.source.call_table()

    @property
    def calls(self) -> Calls:
        return self._call_table.calls

    @property
    def operation_rows(self) -> npt.NDArray[np.intp]:
        """Per operation its row in the whole trace: what is no column of it is read for the whole file."""
        return np.arange(len(self.operations))

    @property
    def range_rows(self) -> npt.NDArray[np.intp]:
        """Per range its row in the whole trace."""
        return np.arange(len(self.ranges))

    @property
    def calls_inside(self) -> npt.NDArray[np.bool_]:
        """Per call, whether it is in the window; those outside are here if they launched what ran inside."""
        return np.ones(len(self.calls), dtype=bool)

    @property
    def stacks(self) -> Stacks:
        return self._call_table.stacks

    @property
    def stacks_found(self) -> StacksFound:
        """Where the Python stacks of the calls came from, and how many could not be used."""
        return self._call_table.found

    @cached_property
    def operations(self) -> Operations:
        operations, repairs = self.source.operations()
        self.repairs |= repairs
        return operations

    @cached_property
    def ranges(self) -> Ranges:
        return self.source.ranges()

    @property
    def ranges_inside(self) -> npt.NDArray[np.bool_]:
        """Per range, whether it is in the window; those outside are here if they launched what ran inside."""
        return np.ones(len(self.ranges), dtype=bool)

    @cached_property
    def overheads(self) -> Overheads:
        return self.source.overheads()

    @cached_property
    def attribution(self) -> Attribution:
        """Per GPU operation the stack that answers for it.

        Raises NotEnoughDataError in a trace without operations.
        """
        if not len(self.operations):
            raise NotEnoughDataError(self.why_empty())
        return attribute(self.operations, self.calls, self.ranges, self.stacks)

    def why_empty(self) -> str:
        """The sentence for a trace without any GPU operation."""
        reasons: dict[Recorder, str] = {
            "profiling_lab": "nothing ran on the GPU while it was recorded",
            "nsys": "nothing ran on the GPU, or nsys ran without `--trace=cuda`",
            "torch.profiler": "nothing ran on the GPU, or ProfilerActivity.CUDA was not among the activities",
        }
        return f"{self.path} holds no GPU operation: {reasons[self.recorder]}"

    @cached_property
    def pauses(self) -> Pauses:
        """When the recording paused, per process that used a GPU: nothing is known of these times."""
        file = self.source.file if isinstance(self.source, SqliteSource) else None
        return read_pauses(file, np.unique(self.whole.operations.process), self.source.processes.ids)

    @cached_property
    def first_ns(self) -> int:
        """When the first call or GPU operation of the whole recording began: people count times from it."""
        columns = (self.whole.operations.start_ns, self.whole.calls.start_ns)
        return min((int(column.min()) for column in columns if len(column)), default=0)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids by process number, as far as the tables read so far name them."""
        return tuple(pid_of(i) for i in self.source.processes.ids)

    @property
    def tids(self) -> tuple[int, ...]:
        """Operating-system thread ids by thread number, as far as the tables read so far name them."""
        return tuple(tid_of(i) for i in self.source.threads.ids)


def _head(path: Path) -> bytes:
    """The first bytes of the file, unpacked if it is gzip. Raises UnreadableInputError if there are none."""
    try:
        if not path.exists():
            raise UnreadableInputError(f"{path}: there is no such file")
        if not path.is_file():
            raise UnreadableInputError(
                f"{path} is a pipe or a device; a trace is read more than once: save it in a file first"
            )
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise UnreadableInputError(f"{path} cannot be read: {error.strerror}") from None
    if not head:
        raise UnreadableInputError(f"{path} is empty")
    if not head.startswith(GZIP):
        return head
    if unpacked := unpacked_head(head):
        return unpacked
    raise UnreadableInputError(f"{path} looks like gzip but cannot be unpacked")
