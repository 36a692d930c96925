# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges with payloads, as NCCL makes them around its calls: communicator, ranks, message sizes."""

from __future__ import annotations

import struct

from builders import TraceBuilder

DOMAIN, COMMUNICATOR = 1, 0xABCDEF
CALL, INIT = 16777220, 16777218
FIELDS = (
    (CALL, "NCCL communicator ID", 18, 0),
    (CALL, "Message size [bytes]", 22, 8),
    (INIT, "NCCL communicator ID", 18, 0),
    (INIT, "No. of ranks", 5, 8),
)
"""schema, name, type and offset, as NCCL declares them"""


def noted_by_nccl(
    builder: TraceBuilder,
    thread: int,
    kernel: str,
    span_ns: tuple[int, int],
    members: int,
    message_bytes: int,
) -> None:
    """The range of the call that launches this kernel; before the first one that of the communicator."""
    begin_ns, end_ns = span_ns
    if not builder.rows.get("NVTX_PAYLOAD_SCHEMA_ENTRIES"):
        for schema, name, kind, offset in FIELDS:
            builder.row(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=DOMAIN, schemaId=schema, idx=offset // 8,
                type=kind, name=name, offset=offset,
            )  # fmt: skip
        made = _payload(INIT, struct.pack("<Qi", COMMUNICATOR, members))
        _range(builder, thread, "ncclCommInitRankConfig", (begin_ns - 900, begin_ns - 600), made)
    name = f"nccl{kernel.removeprefix('ncclDevKernel_').partition('_')[0]}"
    noted = _payload(CALL, struct.pack("<QQ", COMMUNICATOR, message_bytes))
    _range(builder, thread, name, (begin_ns - 500, end_ns + 100), noted)


def _range(builder: TraceBuilder, thread: int, name: str, span_ns: tuple[int, int], payload: bytes) -> None:
    builder.range(name, *span_ns, domainId=DOMAIN, globalTid=builder.tid(thread), binaryData=payload)


def _payload(schema: int, fields: bytes) -> bytes:
    """As nsys exports it: header of domain, schema and sizes, then the fields."""
    return struct.pack("<IIIIQQ", DOMAIN, 0, schema, 0, len(fields), 32 + len(fields)) + fields
