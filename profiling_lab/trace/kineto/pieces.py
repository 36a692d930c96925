# SPDX-License-Identifier: Apache-2.0
"""The bytes of a JSON file, decompressed if needed, in chunks that are prefetched."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from profiling_lab.errors import UnreadableInputError

GZIP = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"
_PIECE_BYTES = 4 << 20
_PACKED_BYTES = 256 << 10
_CAREFUL_BYTES = 256


class Pieces:
    """Iterate once. Decompression and reading release the GIL, so they overlap with parsing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.breaks_off = False
        """the gzip data is truncated or damaged; the data before the damage was returned"""

    def __iter__(self) -> Iterator[bytes]:
        from concurrent.futures import ThreadPoolExecutor  # detecting a format does not wait for it

        try:
            with self.path.open("rb") as file, ThreadPoolExecutor(1) as reader:
                pieces = self._pieces(file)
                piece = reader.submit(next, pieces, b"").result().removeprefix(BOM)
                while piece:
                    coming = reader.submit(next, pieces, b"")
                    yield piece
                    piece = coming.result()
        except OSError as error:
            raise UnreadableInputError(f"{self.path} cannot be read: {error.strerror}") from None

    def _pieces(self, file: BinaryIO) -> Iterator[bytes]:
        packed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        if packed:
            yield from self._unpacked(file)
            return
        while piece := file.read(_PIECE_BYTES):
            yield piece

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        """The members of a gzip file, one after the other, without trailing padding."""
        unpacker = zlib.decompressobj(wbits=31)
        while True:
            packed = unpacker.unconsumed_tail or unpacker.unused_data or file.read(_PACKED_BYTES)
            if unpacker.eof:
                packed += file.read(_PACKED_BYTES) if len(packed) < len(GZIP) else b""
                if not packed.startswith(GZIP):
                    return
                unpacker = zlib.decompressobj(wbits=31)
            elif not packed:
                self.breaks_off = True
                return
            before = unpacker.copy()
            try:
                piece = unpacker.decompress(packed, _PIECE_BYTES)
            except zlib.error:
                self.breaks_off = True
                yield _as_far_as_possible(before, packed)
                return
            if piece:
                yield piece


def unpacked_head(packed: bytes) -> bytes:
    """The decompressed first bytes of a gzip file, as far as they are not damaged."""
    return _as_far_as_possible(zlib.decompressobj(wbits=31), packed)


def _as_far_as_possible(unpacker: zlib._Decompress, packed: bytes) -> bytes:
    """Decompress up to the damage: zlib itself returns nothing of a damaged chunk."""
    found = []
    try:
        for at in range(0, len(packed), _CAREFUL_BYTES):
            found.append(unpacker.decompress(packed[at : at + _CAREFUL_BYTES]))
    except zlib.error:
        pass
    return b"".join(found)
