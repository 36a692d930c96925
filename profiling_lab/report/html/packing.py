# SPDX-License-Identifier: Apache-2.0
"""Integer columns for a page: varints in one body, described by a JSON head, deflated and in base64.

Layout before deflate: the head's length as 4 bytes (little endian), the head (JSON), the body. A column is
`[offset, count]`: where its varints begin in the body, and how many there are. `payload.js` reads it.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from profiling_lab.trace.columns import I64

_SEVEN_BITS = 7
_LONGEST = 10
"""bytes of the longest varint, that of 64 bits"""


class Packer:
    """Collects columns. Values are integers from 0 up, or of any sign with `signed`."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def column(self, values: npt.ArrayLike, signed: bool = False) -> list[int]:
        """Add a column and say where it is."""
        numbers = np.asarray(values)
        data = varints(zigzag(numbers.astype(np.int64)) if signed else numbers.astype(np.uint64))
        where = [self._length, len(numbers)]
        self._parts.append(data)
        self._length += len(data)
        return where

    def pack(self, head: dict[str, Any]) -> str:
        """All columns with their head as base64 text."""
        encoded = msgspec.json.encode(head)
        deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        data = deflate.compress(len(encoded).to_bytes(4, "little") + encoded)
        data += deflate.compress(b"".join(self._parts))
        return base64.b64encode(data + deflate.flush()).decode()


def unpack(text: str) -> tuple[dict[str, Any], bytes]:
    """The head and the body of what `pack` made."""
    data = zlib.decompress(base64.b64decode(text), -zlib.MAX_WBITS)
    size = int.from_bytes(data[:4], "little")
    head: dict[str, Any] = msgspec.json.decode(data[4 : 4 + size])
    return head, data[4 + size :]


def zigzag(values: I64) -> npt.NDArray[np.uint64]:
    """Small numbers of either sign as small numbers: 0, -1, 1, -2 become 0, 1, 2, 3."""
    out: npt.NDArray[np.uint64] = ((values << 1) ^ (values >> 63)).view(np.uint64)
    return out


def varints(values: npt.NDArray[np.uint64]) -> bytes:
    """Seven bits to a byte, the low ones first; a set top bit says that more follow."""
    if not len(values):
        return b""
    size = np.ones(len(values), dtype=np.int64)
    for length in range(1, _LONGEST):
        longer = values >= np.uint64(1 << (_SEVEN_BITS * length))
        if not longer.any():
            break
        size += longer
    ends = np.cumsum(size)
    starts = ends - size
    out = np.zeros(int(ends[-1]), dtype=np.uint8)
    for place in range(int(size.max())):
        rows = np.flatnonzero(size > place)
        bits = (values[rows] >> np.uint64(_SEVEN_BITS * place)).astype(np.uint8) & 0x7F
        out[starts[rows] + place] = bits | np.where(size[rows] > place + 1, 0x80, 0).astype(np.uint8)
    return out.tobytes()


def read_column(body: bytes, where: list[int], signed: bool = False) -> I64:
    """The column at `where`, as `Packer.column` wrote it. Raises IndexError where the body ends too early."""
    offset, count = where
    data = np.frombuffer(body, dtype=np.uint8)[offset:]
    ends = np.flatnonzero(data < 0x80)[:count]
    if len(ends) < count:
        raise IndexError(f"expected {count} numbers at {offset}, found {len(ends)}")
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    out = np.zeros(count, dtype=np.int64)
    size = ends - starts + 1
    for place in range(int(size.max(initial=0))):
        rows = np.flatnonzero(size > place)
        out[rows] |= (data[starts[rows] + place] & 0x7F).astype(np.int64) << (_SEVEN_BITS * place)
    if signed:
        out = (out.view(np.uint64) >> np.uint64(1)).astype(np.int64) ^ -(out & 1)
    return out
