# SPDX-License-Identifier: Apache-2.0
"""The StringIds table, with the strings that other tables use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.recording.spool import Rows

NONE = 0xFFFFFFFF  # the spool's "no string"
Ids = npt.NDArray[np.int64]


class StringTable:
    """Text -> id, ids counted from 1 in the order of first use."""

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
            "id": pa.array(range(1, len(self._ids) + 1), pa.int64()),
            "value": pa.array(self._ids, pa.string()),
        }
        yield "StringIds", pa.table(columns)
