# SPDX-License-Identifier: Apache-2.0
"""A capture file in memory: one structured array per record kind (csrc/recorder/spool/records.h)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.errors import LabError, UnreadableInputError
from profiling_lab.recording.tables.arrow_columns import numbers, of_list

Records = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
Rows = tuple[str, Any]
"""the name of a table, and rows for it"""

NONE = 0xFFFFFFFF
"""a field's "no value" (csrc/recorder/spool/records.h)"""

PIECE_ROWS = 200_000
"""rows per chunk when writing, to limit memory to little more than the capture"""

# nsys packs machine, process and thread into one number; ours are machine 0, virtual machine 1.
VIRTUAL_MACHINE = 1 << 48


@dataclass(frozen=True, slots=True)
class Spool:
    """Times are CLOCK_REALTIME nanoseconds; `start_ns` is the recording's time zero."""

    path: Path
    process: int
    start_ns: int
    strings: list[str]
    meta: dict[str, str]
    unreadable_bytes: int
    unreadable_places: int
    records: dict[str, Records]

    @classmethod
    def read(cls, path: str | Path, file: int = -1) -> Spool:
        """Read it from `path`, or from a descriptor; `path` is then only used in messages.

        Raises UnreadableInputError if it is not a capture file.
        """
        from profiling_lab import _recorder

        try:
            raw = _recorder.read_spool(path, file)
        except RuntimeError as error:
            raise UnreadableInputError(str(error)) from error
        except MemoryError as error:
            raise LabError(f"there is not enough memory to read {path}") from error
        return cls(
            path=Path(path),
            process=raw.pop("process"),
            start_ns=raw.pop("start_ns"),
            strings=raw.pop("strings"),
            meta=raw.pop("meta"),
            unreadable_bytes=raw.pop("unreadable_bytes"),
            unreadable_places=raw.pop("unreadable_places"),
            records=raw,
        )

    def since_start(self, times: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Nanoseconds since time zero; negative for earlier events."""
        return times.astype(np.int64) - np.int64(self.start_ns)

    @property
    def unreadable(self) -> str:
        """A clause about unreadable parts; "" if there are none."""
        if not self.unreadable_bytes:
            return ""
        places = f" in {self.unreadable_places} places" if self.unreadable_places > 1 else ""
        return f"{self.unreadable_bytes:,} bytes of the capture{places} could not be read and were skipped"

    @property
    def global_pid(self) -> int:
        return int(global_tid(self.process, 0))


def pieces(records: Records) -> Iterator[Records]:
    """The records by start time, in chunks."""
    order = np.argsort(records["start_ns"], kind="stable")
    for first in range(0, len(order), PIECE_ROWS):
        yield records[order[first : first + PIECE_ROWS]]


def global_tid(process: int, thread: Any) -> Any:
    """The globalTid of nsys: 24 bits each for process and thread."""
    return VIRTUAL_MACHINE | (process << 24) | thread


def numbers_of(strings: list[str]) -> Callable[[str], int]:
    """The number of a text among the strings of a capture; a text that is not among them is added."""
    known = {text: number for number, text in enumerate(strings)}

    def number(text: str) -> int:
        if text not in known:
            known[text] = len(strings)
            strings.append(text)
        return known[text]

    return number


class StringTable:
    """The rows of StringIds, as far as other tables use them: text -> id, from 1 by first use."""

    def __init__(self, spool_strings: list[str]) -> None:
        self._spool = spool_strings
        self._ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        """The id of a text; a new id for a new text."""
        return self._ids.setdefault(text, len(self._ids) + 1)

    def text(self, spool_id: int) -> str:
        """The text of a spool id; "" if there is none."""
        return self._spool[spool_id] if spool_id < len(self._spool) else ""

    def ids(self, spool_ids: npt.NDArray[Any]) -> Ids:
        """StringIds ids for a column of spool ids; -1 for rows without a string."""
        distinct, inverse = np.unique(spool_ids, return_inverse=True)
        mapped = [self.id(self._spool[i]) if i < len(self._spool) else -1 for i in distinct.tolist()]
        return np.asarray(mapped, dtype=np.int64)[inverse.reshape(-1)]

    def build(self) -> Iterator[Rows]:
        """The rows of StringIds as an Arrow table."""
        import pyarrow as pa

        columns = {
            "id": numbers(np.arange(1, len(self._ids) + 1)),
            "value": of_list([*self._ids], pa.string()),
        }
        yield "StringIds", pa.table(columns)
