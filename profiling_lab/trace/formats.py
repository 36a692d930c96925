# SPDX-License-Identifier: Apache-2.0
"""Detect the format of a file by its contents, not by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from profiling_lab.errors import UnreadableInputError
from profiling_lab.records import dataclass
from profiling_lab.trace.kineto.pieces import BOM, GZIP, unpacked_head
from profiling_lab.trace.nsys import MAGIC, SUFFIXES
from profiling_lab.trace.rocprof import METADATA, ROOT
from profiling_lab.trace.snapshot.plain_pickle import is_pickle
from profiling_lab.trace.source import Source
from profiling_lab.trace.xplane import begins_xspace

_HEAD_BYTES = 4096
_ROOT_WITHIN = 64
_CONVERT = {
    ".nsys-rep": "an nsys report; convert it first: nsys export --type=sqlite --include-json=true {}",
    ".qdrep": "an nsys report; convert it first: nsys export --type=sqlite --include-json=true {}",
    ".csv": "a CSV file, which is not read here (that of ncu: `check`, `ncu --from`); "
    "rocprofv3 --output-format rocpd, or json, notes more",
    ".pftrace": "a Perfetto trace, which is not read; record with rocprofv3 --output-format rocpd, or json",
}


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
def _sqlite(path: Path) -> Source:
    from profiling_lab.trace.nsys.source import SqliteSource, open_file

    file = open_file(path)
    if not any(table.startswith(METADATA) for table in file.tables):
        return SqliteSource(path, file)
    from profiling_lab.trace.rocprof.source import RocprofSource

    return RocprofSource.of_database(file)


def _kineto(path: Path) -> Source:
    from profiling_lab.trace.kineto.source import ChromeSource

    return ChromeSource(path)


def _xplane(path: Path) -> Source:
    from profiling_lab.trace.xplane.source import XPlaneSource

    return XPlaneSource(path)


def _rocprof_json(path: Path) -> Source:
    from profiling_lab.trace.rocprof.source import RocprofSource

    return RocprofSource.of_json(path)


def _snapshot(path: Path) -> Source:
    from profiling_lab.trace.snapshot.source import SnapshotSource

    return SnapshotSource(path)


# The first that recognizes a file reads it.
FORMATS = (
    Format(
        _sqlite,
        "an SQLite file from `profiling-lab record`, `nsys export --type=sqlite` or rocprofv3 (rocpd), also "
        "inside of gzip",
        (".sqlite", ".sqlite.gz", ".db"),
        lambda head: head.startswith(MAGIC),
    ),
    Format(_xplane, "an XPlane file of JAX or XLA", (".xplane.pb", ".xplane.pb.gz"), begins_xspace),
    Format(_rocprof_json, "the JSON of rocprofv3", (), lambda head: ROOT.encode() in head[:_ROOT_WITHIN]),
    Format(_kineto, "the JSON of torch.profiler", (".json", ".json.gz"), _is_json),
    Format(_snapshot, "a memory snapshot of torch (a pickle)", (".pickle", ".pickle.gz"), is_pickle),
)
ENDINGS = tuple(ending for known in FORMATS for ending in known.endings)


def open_source(path: Path) -> Source:
    """Open a trace file. Raises UnreadableInputError if it does not exist or is not a trace."""
    try:
        is_folder = path.is_dir()
    except OSError as error:  # no permission for a parent folder, or the name is too long
        raise UnreadableInputError(f"{path} cannot be read: {error.strerror}") from None
    if is_folder:
        return _sqlite(path)  # tables as Parquet files
    head = _head(path)
    for known in FORMATS:
        if known.recognizes(head):
            return known.source(path)
    if (kind := _CONVERT.get(path.suffix)) is not None:
        raise UnreadableInputError(f"{path} is {kind.format(path)}")
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
