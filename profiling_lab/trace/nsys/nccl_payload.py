# SPDX-License-Identifier: Apache-2.0
"""The payloads of NCCL's own NVTX ranges: communicator and message size, if they were exported.

nsys exports them with `nsys export --include-blobs=true`: NVTX_EVENTS.binaryData has a header of 32 bytes
(domain, schema, sizes) and then the payload, whose fields are described by NVTX_PAYLOAD_SCHEMA_ENTRIES.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiling_lab.trace.columns import I64
from profiling_lab.trace.extras import FARTHEST_BYTES, CollectiveFacts
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.operation_classes import collective_kind
from profiling_lab.trace.process_ids import Registry
from profiling_lab.trace.source import Tables

_HEADER_BYTES = 32
_SCHEMA_AT = 8
_COMMUNICATOR, _SIZE, _MEMBERS = "NCCL communicator ID", "Message size [bytes]", "No. of ranks"
# Widths in bytes of NVTX's integer types, by their numbers: int, long, long long, int32, int64, size_t.
_WIDTHS = {5: 4, 6: 4, 7: 8, 8: 8, 9: 8, 10: 8, 15: 4, 16: 4, 17: 8, 18: 8, 22: 8}


@dataclass(frozen=True, slots=True)
class Payloads:
    """NCCL calls with a payload, by thread and time."""

    thread: I64
    """global thread id"""
    start_ns: I64
    name: tuple[str, ...]
    """the function, such as ncclAllReduce"""
    communicator: tuple[str, ...]
    size_bytes: I64
    """-1 unknown"""
    members: dict[str, int]
    """ranks per communicator, for communicators created during the recording"""

    def __len__(self) -> int:
        return len(self.start_ns)

    def before(self, thread: I64, time_ns: I64) -> np.ndarray:
        """Per moment of a thread the row of the latest call that began before, -1 if there is none."""
        out = np.full(len(time_ns), -1, dtype=np.intp)
        for tid in np.unique(thread).tolist():
            rows = np.flatnonzero(self.thread == tid)
            here = np.flatnonzero(thread == tid)
            if len(rows):
                at = np.searchsorted(self.start_ns[rows], time_ns[here], side="right") - 1
                out[here] = np.where(at >= 0, rows[at], -1)
        return out


def payloads(file: SqliteFile) -> Payloads:
    """Read the payloads; empty if the file has none."""
    table = file.newest("NVTX_EVENTS")
    schemas = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    nothing = np.empty(0, dtype=np.int64)
    needed = {"start", "globalTid", "binaryData"}
    if table is None or not needed <= set(file.columns(table)) or not file.columns(schemas):
        return Payloads(nothing, nothing, (), (), nothing, {})
    entries = file.texts(
        "SELECT CAST(schemaId AS TEXT), CAST(IFNULL(type, 0) AS TEXT), CAST(IFNULL(offset, 0) AS TEXT),"
        f" CAST(IFNULL(name, '') AS BLOB) FROM {schemas}"
    )
    fields = {(int(schema), name): (int(kind), int(offset)) for schema, kind, offset, name in entries}
    by_id = "textId" in file.columns(table) and bool(file.columns("StringIds"))
    join = "LEFT JOIN StringIds s ON s.id = n.textId" if by_id else ""
    text = "COALESCE(n.text, s.value, '')" if by_id else "COALESCE(n.text, '')"
    columns, texts = file.coded_texts(
        f"SELECT CAST(n.start AS INTEGER), IFNULL(n.globalTid, 0),"
        f" CAST({text} || ' ' || hex(n.binaryData) AS BLOB)"
        f" FROM \"{table}\" n {join} WHERE n.binaryData IS NOT NULL AND {text} LIKE 'nccl%' ORDER BY n.start",
        2,
    )
    names, values = zip(*(_decoded(entry, fields) for entry in texts), strict=True) if texts else ((), ())
    members = {
        str(value[_COMMUNICATOR]): value[_MEMBERS]
        for value in values
        if _MEMBERS in value and _COMMUNICATOR in value
    }
    rows = [row for row in columns[2].tolist() if values[row].get(_SIZE, FARTHEST_BYTES) < FARTHEST_BYTES]
    kept = np.isin(columns[2], np.unique(rows))
    return Payloads(
        thread=columns[1][kept],
        start_ns=columns[0][kept],
        name=tuple(names[row] for row in rows),
        communicator=tuple(str(values[row].get(_COMMUNICATOR, "")) for row in rows),
        size_bytes=np.array([values[row][_SIZE] for row in rows], dtype=np.int64),
        members=members,
    )


def read_collectives(
    file: SqliteFile, threads: Registry, whole: Tables, rows: npt.NDArray[np.intp]
) -> list[CollectiveFacts | None]:
    """The collectives of NCCL kernels. NCCL launches them inside the call's range, or at the end of the
    group.
    """
    out: list[CollectiveFacts | None] = [None] * len(rows)
    noted = payloads(file)
    if not len(noted) or not len(rows):
        return out
    call = whole.attribution.call[rows]
    known = call >= 0
    tids = np.array(threads.ids or (0,), dtype=np.int64)
    at = np.full(len(rows), -1, dtype=np.intp)
    at[known] = noted.before(tids[whole.calls.thread[call[known]]], whole.calls.start_ns[call[known]])
    names = whole.operations.short_names
    for i, (row, name) in enumerate(zip(at.tolist(), whole.operations.name[rows].tolist(), strict=True)):
        if row < 0 or collective_kind(noted.name[row]) != collective_kind(names[name]):
            continue
        communicator = noted.communicator[row]
        out[i] = CollectiveFacts(
            kind=collective_kind(names[name]),
            group=f"communicator {int(communicator):x}" if communicator else "",
            size=noted.members.get(communicator, 0),
            size_bytes=int(noted.size_bytes[row]),
        )
    return out


def _decoded(entry: str, fields: dict[tuple[int, str], tuple[int, int]]) -> tuple[str, dict[str, int]]:
    """The name of a call, and the fields of its payload that are used here."""
    name, _, coded = entry.rpartition(" ")
    data = bytes.fromhex(coded)
    if len(data) < _HEADER_BYTES:
        return name, {}
    schema = struct.unpack_from("<Q", data, _SCHEMA_AT)[0]
    payload = data[_HEADER_BYTES:]
    out = {}
    for field in (_COMMUNICATOR, _SIZE, _MEMBERS):
        kind, offset = fields.get((schema, field), (0, 0))
        width = _WIDTHS.get(kind, 0)
        if width and offset + width <= len(payload):
            out[field] = int.from_bytes(payload[offset : offset + width], "little")
    return name, out
