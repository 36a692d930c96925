# SPDX-License-Identifier: Apache-2.0
"""Detect the format of a file by its contents, not by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace.kineto.pieces import BOM, GZIP, unpacked_head
from profiling_lab.trace.nsys import MAGIC, SUFFIXES
from profiling_lab.trace.source import Source

_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of trace file: who reads it, and how it is recognized."""

    source: Callable[[Path], Source]
    title: str  # for the message about a file of no known format
    endings: tuple[str, ...]  # of file names
    recognizes: Callable[[bytes], bool]  # from the first bytes, decompressed


def _is_json(head: bytes) -> bool:
    return head.removeprefix(BOM).lstrip()[:1] in (b"{", b"[")


# A reader is imported when a file of its kind is opened: no command waits for the others.
def _nsys(path: Path) -> Source:
    from profiling_lab.trace.nsys.source import SqliteSource

    return SqliteSource(path)


def _kineto(path: Path) -> Source:
    from profiling_lab.trace.kineto.source import ChromeSource

    return ChromeSource(path)


FORMATS = (
    Format(
        _nsys,
        "an SQLite file from `profiling-lab record` or `nsys export --type=sqlite`",
        (".sqlite",),
        lambda head: head.startswith(MAGIC),
    ),
    Format(_kineto, "the JSON of torch.profiler", (".json", ".json.gz"), _is_json),
)
ENDINGS = tuple(ending for known in FORMATS for ending in known.endings)


def open_source(path: Path) -> Source:
    """Open a trace file. Raises UnreadableInputError if it does not exist or is not a trace."""
    try:
        is_folder = path.is_dir()
    except OSError as error:  # no permission for a parent folder, or the name is too long
        raise UnreadableInputError(f"{path} cannot be read: {error.strerror}") from None
    if is_folder:
        return _nsys(path)  # tables as Parquet files
    head = _head(path)
    for known in FORMATS:
        if known.recognizes(head):
            return known.source(path)
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise UnreadableInputError(
            f"{path} is an nsys report; convert it first: "
            f"nsys export --type=sqlite --include-json=true {path}"
        )
    expected = ", or ".join(known.title for known in FORMATS)
    raise UnreadableInputError(f"{path} is not a trace: expected {expected}")


def is_trace_name(path: Path) -> bool:
    """Whether a file in a folder looks like a trace, by its name. A folder of tables counts too."""
    if path.is_dir():
        return any(child.suffix in SUFFIXES for child in path.iterdir())
    return path.name.endswith(ENDINGS)


def _head(path: Path) -> bytes:
    """The first bytes of the file, decompressed if it is gzip. Raises UnreadableInputError if it is empty."""
    try:
        if not path.exists():
            raise UnreadableInputError(f"{path}: there is no such file")
        if not path.is_file():
            raise UnreadableInputError(
                f"{path} is a pipe or a device; a trace is read more than once: save it to a file first"
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
    raise UnreadableInputError(f"{path} looks like gzip but cannot be decompressed")
