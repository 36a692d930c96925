# SPDX-License-Identifier: Apache-2.0
"""A recorded GPU trace as columns, read when they are first asked for."""

from __future__ import annotations

import gzip
from functools import cached_property
from pathlib import Path

from profiling_lab.errors import NotEnoughDataError, UnreadableInputError
from profiling_lab.trace.attribution import Attribution, attribute
from profiling_lab.trace.columns import Calls, NvtxRanges, Operations
from profiling_lab.trace.process_ids import Registry, pid_of, process_part, tid_of
from profiling_lab.trace.python_stacks import CallStacks
from profiling_lab.trace.read_calls import CALL_TABLE, CallTable, read_calls
from profiling_lab.trace.read_operations import TABLES, read_operations
from profiling_lab.trace.read_ranges import read_ranges
from profiling_lab.trace.sqlite_file import MAGIC, SqliteFile
from profiling_lab.trace.stacks import Stacks
from profiling_lab.trace.strings import Strings, read_strings

# Any of these makes an SQLite file a trace in the nsys schema; tables without rows are not written.
_MARKS = (
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "META_DATA_CAPTURE",
    "PYREC_META",
    CALL_TABLE,
    *TABLES.values(),
)


class Trace:
    """A GPU trace. Open one with `Trace.open`; it is a context manager, and reading never alters the file.

    Rows of `operations`, `calls` and `ranges` keep the order of the file. Times are integer nanoseconds on
    the file's
    own clock.
    """

    def __init__(self, path: Path, file: SqliteFile) -> None:
        self.path = path
        self.file = file
        self._processes = Registry()
        self._threads = Registry()
        self.repairs: dict[str, int] = {}
        """rows that were repaired or skipped, by what was wrong with them; complete once the columns were
        read
        """

    @classmethod
    def open(cls, path: str | Path) -> Trace:
        """Open a trace by what is in it, whatever its name: ours, or any nsys SQLite export.

        Raises UnreadableInputError if there is no such file or it is no trace.
        """
        path = Path(path)
        _check_is_trace(path)
        file = SqliteFile(path)
        if not any(file.newest(mark) for mark in _MARKS):
            raise UnreadableInputError(
                f"{path} is an SQLite file but no GPU trace: it has none of the tables of an nsys export"
            )
        return cls(path, file)

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()

    @cached_property
    def is_ours(self) -> bool:
        """Recorded by this package's recorder (not by nsys)."""
        return bool(self.file.columns("PYREC_META") or self.file.columns("PYREC_LAUNCH"))

    @cached_property
    def recorder_facts(self) -> dict[str, str]:
        """What our recorder noted about itself, {} in an nsys export."""
        if not self.file.columns("PYREC_META"):
            return {}
        query = "SELECT CAST(name AS BLOB), CAST(COALESCE(value, '') AS BLOB) FROM PYREC_META"
        return {row[0]: row[1] for row in self.file.texts(query)}

    @cached_property
    def strings(self) -> Strings:
        return read_strings(self.file)

    @cached_property
    def thread_names(self) -> dict[int, str]:
        """Names by global thread id."""
        if not self.file.columns("ThreadNames"):
            return {}
        rows = self.file.select("ThreadNames", {"nameId": 0, "globalTid": 0})
        return {
            tid: self.strings[name]
            for name, tid in zip(rows["nameId"].tolist(), rows["globalTid"].tolist(), strict=True)
        }

    @cached_property
    def _call_table(self) -> CallTable:
        return read_calls(self.file, self.strings, self._processes, self._threads, self.thread_names)

    @property
    def calls(self) -> Calls:
        return self._call_table.calls

    @property
    def stacks(self) -> Stacks:
        return self._call_table.stacks

    @property
    def stacks_found(self) -> CallStacks:
        """Where the Python stacks of the calls came from, and how many could not be used."""
        return self._call_table.found

    @cached_property
    def operations(self) -> Operations:
        operations, repairs = read_operations(self.file, self.strings, self._processes, self._only_process())
        self.repairs |= repairs
        return operations

    def _only_process(self) -> int:
        """The process that rows without one belong to: that of the calls, if they all have the same."""
        table = self.file.newest(CALL_TABLE)
        if table is None:
            return 0
        tids = self.file.integers(f'SELECT DISTINCT IFNULL(globalTid, 0) FROM "{table}"', 1)[0]
        processes = set(process_part(tids).tolist())
        return processes.pop() if len(processes) == 1 else 0

    @cached_property
    def ranges(self) -> NvtxRanges:
        return read_ranges(self.file, self._processes, self._threads)

    @cached_property
    def attribution(self) -> Attribution:
        """Per GPU operation the stack that answers for it. Raises NotEnoughDataError in a trace without
        operations.
        """
        if not len(self.operations):
            raise NotEnoughDataError(self.why_empty())
        return attribute(self.operations, self.calls, self.ranges)

    def why_empty(self) -> str:
        """The sentence for a trace without any GPU operation."""
        if self.is_ours:
            return f"{self.path} holds no GPU operation: nothing ran on the GPU while it was recorded"
        return (
            f"{self.path} holds no GPU operation: nothing ran on the GPU, or nsys ran without `--trace=cuda`"
        )

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids by process number, as far as the tables read so far name them."""
        return tuple(pid_of(i) for i in self._processes.ids)

    @property
    def tids(self) -> tuple[int, ...]:
        """Operating-system thread ids by thread number, as far as the tables read so far name them."""
        return tuple(tid_of(i) for i in self._threads.ids)


def _check_is_trace(path: Path) -> None:
    """Raise unless the file starts like something that can be read here."""
    if not path.exists():
        raise UnreadableInputError(f"{path}: there is no such file")
    if path.is_dir():
        raise UnreadableInputError(f"{path} is a directory; a trace file was expected")
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise UnreadableInputError(f"{path} cannot be read: {error.strerror}") from None
    if not head:
        raise UnreadableInputError(f"{path} is empty")
    if head.startswith(MAGIC):
        return
    if head.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(path) as unpacked:
                head = unpacked.read(4096)
        except (OSError, EOFError):
            raise UnreadableInputError(f"{path} looks like gzip but cannot be unpacked") from None
    if b'"traceEvents"' in head or b'"schemaVersion"' in head:
        raise UnreadableInputError(
            f"{path} is a torch.profiler trace, which is not yet readable here; an SQLite trace was "
            "expected, from `profiling-lab record` or `nsys export --type=sqlite`"
        )
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise UnreadableInputError(
            f"{path} is an nsys report; convert it first: "
            f"nsys export --type=sqlite --include-json=true {path}"
        )
    raise UnreadableInputError(
        f"{path} is no trace: an SQLite file was expected, "
        "from `profiling-lab record` or `nsys export --type=sqlite`"
    )
