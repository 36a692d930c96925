# SPDX-License-Identifier: Apache-2.0
"""A capture file taken apart and put together again, with sums that are right."""

from __future__ import annotations

import struct


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def block(kind: int, record_bytes: int, payload: bytes) -> bytes:
    start = struct.pack("<4sHHI", b"PLSL", kind, record_bytes, len(payload))
    return start + struct.pack("<I", crc32c(start + payload)) + payload


def positions(content: bytes) -> list[tuple[int, int, int]]:
    """(kind, begin, end) of every block."""
    found, at = [], 0
    while at < len(content):
        magic, kind, _, length, _ = struct.unpack_from("<4sHHII", content, at)
        assert magic == b"PLSL"
        found.append((kind, at, at + 16 + length))
        at += 16 + length
    return found


def parts(content: bytes) -> list[tuple[int, int, bytes]]:
    """(kind, bytes of a record, payload) of every block."""
    return [
        (kind, struct.unpack_from("<H", content, begin + 6)[0], content[begin + 16 : end])
        for kind, begin, end in positions(content)
    ]
