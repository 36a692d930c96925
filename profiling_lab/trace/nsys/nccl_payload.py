# SPDX-License-Identifier: Apache-2.0
"""The payloads of NCCL's own NVTX ranges: communicator and message size, if they were exported.

nsys exports them with `nsys export --include-blobs=true`: NVTX_EVENTS.binaryData has a header of 32 bytes
(domain, schema, sizes) and then the payload, whose fields are described by NVTX_PAYLOAD_SCHEMA_ENTRIES.
"""

from __future__ import annotations

import struct

import numpy as np

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, unique
from profiling_lab.trace.extras import FARTHEST_BYTES
from profiling_lab.trace.nsys.sqlite_file import SqliteFile

_HEADER_BYTES = 32
_SCHEMA_AT = 8
_COMMUNICATOR, _SIZE, _MEMBERS = "NCCL communicator ID", "Message size [bytes]", "No. of ranks"
_PEER = "Peer rank"
_GROUP_STARTS, _GROUP_ENDS = "ncclGroupStart", "ncclGroupEnd"
# Widths in bytes of NVTX's integer types, by their numbers: int, long, long long, int32, int64, size_t.
_WIDTHS = {5: 4, 6: 4, 7: 8, 8: 8, 9: 8, 10: 8, 15: 4, 16: 4, 17: 8, 18: 8, 22: 8}


@dataclass(frozen=True, slots=True)
class Payloads:
    """NCCL calls with a payload, by time."""

    thread: I64
    """global thread id"""
    start_ns: I64
    end_ns: I64
    name: tuple[str, ...]
    """the function, such as ncclAllReduce"""
    communicator: tuple[str, ...]
    size_bytes: I64
    peer: I64
    """the other rank of a send or receive, -1 for any other call"""
    group: I64
    """calls with the same number are in one ncclGroupStart .. ncclGroupEnd: their kernels are launched at its
    end; -1 outside of a group"""
    members: dict[str, int]
    """ranks per communicator, for communicators created during the recording"""

    def __len__(self) -> int:
        return len(self.start_ns)

    def before(self, thread: I64, time_ns: I64) -> np.ndarray:
        """Per moment of a thread the row of the latest call that began before, -1 if there is none."""
        out = np.full(len(time_ns), -1, dtype=np.intp)
        for tid in unique(thread).tolist():
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
    empty = Payloads(nothing, nothing, nothing, (), (), nothing, nothing, nothing, {})
    needed = {"start", "end", "globalTid", "binaryData"}
    if table is None or not needed <= set(file.columns(table)) or not file.columns(schemas):
        return empty
    entries = file.texts(
        "SELECT CAST(schemaId AS TEXT), CAST(IFNULL(type, 0) AS TEXT), CAST(IFNULL(offset, 0) AS TEXT),"
        f" CAST(IFNULL(name, '') AS BLOB) FROM {schemas}"
    )
    fields = {(int(schema), name): (int(kind), int(offset)) for schema, kind, offset, name in entries}
    by_id = "textId" in file.columns(table) and bool(file.columns("StringIds"))
    join = "LEFT JOIN StringIds s ON s.id = n.textId" if by_id else ""
    text = "COALESCE(n.text, s.value, '')" if by_id else "COALESCE(n.text, '')"
    # A group has no payload of its own.
    columns, texts = file.coded_texts(
        f"SELECT CAST(n.start AS INTEGER), CAST(IFNULL(n.end, n.start) AS INTEGER), IFNULL(n.globalTid, 0),"
        f" CAST({text} || ' ' || hex(n.binaryData) AS BLOB)"
        f" FROM \"{table}\" n {join} WHERE (n.binaryData IS NOT NULL AND {text} LIKE 'nccl%')"
        f" OR {text} IN ('{_GROUP_STARTS}', '{_GROUP_ENDS}') ORDER BY n.start",
        3,
    )
    start_ns, end_ns, thread, row = columns
    names, values = zip(*(_decoded(entry, fields) for entry in texts), strict=True) if texts else ((), ())
    members = {
        str(value[_COMMUNICATOR]): value[_MEMBERS]
        for value in values
        if _MEMBERS in value and _COMMUNICATOR in value
    }
    wanted = np.array([value.get(_SIZE, FARTHEST_BYTES) < FARTHEST_BYTES for value in values] or [False])
    kept = wanted[row]
    rows = row[kept].tolist()
    return Payloads(
        thread=thread[kept],
        start_ns=start_ns[kept],
        end_ns=end_ns[kept],
        name=tuple(names[row] for row in rows),
        communicator=tuple(str(values[row].get(_COMMUNICATOR, "")) for row in rows),
        size_bytes=np.array([values[row][_SIZE] for row in rows], dtype=np.int64),
        peer=np.array([values[row].get(_PEER, -1) for row in rows], dtype=np.int64),
        group=_groups(thread, [names[i] for i in row.tolist()])[kept],
        members=members,
    )


def _groups(thread: I64, names: list[str]) -> I64:
    """Per call the number of the outermost group around it, -1 without one; calls are in order of time."""
    out = np.full(len(thread), -1, dtype=np.int64)
    if _GROUP_STARTS not in names:
        return out
    depth: dict[int, int] = {}
    current: dict[int, int] = {}
    for i, (tid, name) in enumerate(zip(thread.tolist(), names, strict=True)):
        if name == _GROUP_STARTS:
            if not depth.get(tid):
                current[tid] = i
            depth[tid] = depth.get(tid, 0) + 1
        elif name == _GROUP_ENDS:
            depth[tid] = max(depth.get(tid, 0) - 1, 0)
        elif depth.get(tid):
            out[i] = current[tid]
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
    for field in (_COMMUNICATOR, _SIZE, _MEMBERS, _PEER):
        kind, offset = fields.get((schema, field), (0, 0))
        width = _WIDTHS.get(kind, 0)
        if width and offset + width <= len(payload):
            out[field] = int.from_bytes(payload[offset : offset + width], "little")
    return name, out
