# SPDX-License-Identifier: Apache-2.0
"""Which reader a file is for: by what is in it, whatever its name."""

from __future__ import annotations

from pathlib import Path

from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace.kineto.pieces import BOM, GZIP, unpacked_head
from profiling_lab.trace.kineto.source import ChromeSource
from profiling_lab.trace.nsys.parquet_folder import SUFFIXES
from profiling_lab.trace.nsys.source import SqliteSource
from profiling_lab.trace.nsys.sqlite_file import MAGIC
from profiling_lab.trace.source import Source

_HEAD_BYTES = 4096
ENDINGS = (".sqlite", ".json", ".json.gz")


def open_source(path: Path) -> Source:
    """Raises UnreadableInputError if there is no such file or it is no trace."""
    try:
        is_folder = path.is_dir()
    except OSError as error:  # a folder on the way to it is denied, or the name is too long
        raise UnreadableInputError(f"{path} cannot be read: {error.strerror}") from None
    if is_folder:
        return SqliteSource(path)
    head = _head(path)
    if head.startswith(MAGIC):
        return SqliteSource(path)
    if head.removeprefix(BOM).lstrip()[:1] in (b"{", b"["):
        return ChromeSource(path)
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise UnreadableInputError(
            f"{path} is an nsys report; convert it first: "
            f"nsys export --type=sqlite --include-json=true {path}"
        )
    raise UnreadableInputError(
        f"{path} is no trace: expected an SQLite file from `profiling-lab record` or "
        "`nsys export --type=sqlite`, or the JSON of torch.profiler"
    )


def is_trace_name(path: Path) -> bool:
    """Whether a file in a folder of traces is one, by its name; a folder of tables is one."""
    if path.is_dir():
        return any(child.suffix in SUFFIXES for child in path.iterdir())
    return path.name.endswith(ENDINGS)


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
