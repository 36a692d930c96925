# SPDX-License-Identifier: Apache-2.0
"""What torch.profiler's communication kernels say of their collective. Decoded when it is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from profiling_lab.trace.columns import I32, I64
from profiling_lab.trace.kineto.events import whole


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective, '' and -1 where the file does not tell."""

    name: str
    """allreduce, _allgather_base, ..."""
    group: str
    members: tuple[int, ...]
    size: int
    """ranks in the group"""
    sequence: int
    elements_in: int
    elements_out: int
    dtype: str


class Collectives:
    """The operations that said something of a collective, and what: `of(row)` by row of Operations."""

    def __init__(self, rows: I64, text: I32, texts: tuple[str, ...]) -> None:
        self.rows = rows
        self._text, self._texts = text, texts

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[int, Collective]]:
        """Rows of Operations with their collective."""
        return (
            (row, self._decoded[text])
            for row, text in zip(self.rows.tolist(), self._text.tolist(), strict=True)
        )

    def of(self, row: int) -> Collective | None:
        at = int(np.searchsorted(self.rows, row))
        found = at < len(self.rows) and self.rows[at] == row
        return self._decoded[int(self._text[at])] if found else None

    @cached_property
    def _decoded(self) -> dict[int, Collective]:
        return {text: _collective(self._texts[text]) for text in np.unique(self._text).tolist()}


def collectives(text: I32, texts: tuple[str, ...]) -> Collectives:
    rows = np.flatnonzero(text >= 0)
    return Collectives(rows, text[rows], texts)


def _collective(json: str) -> Collective:
    try:
        args: dict[str, Any] = msgspec.json.decode(json, type=dict)
    except msgspec.MsgspecError:  # an escape that JSON does not know
        args = {}
    members = tuple(int(rank) for rank in re.findall(r"\d{1,9}", str(args.get("process group ranks", ""))))
    return Collective(
        name=str(args.get("collective name", "")),
        group=str(args.get("process group name", "")),
        members=members,
        size=whole(args.get("group size")) if "group size" in args else len(members) or -1,
        sequence=whole(args.get("seq")),
        elements_in=whole(args.get("in msg nelems")),
        elements_out=whole(args.get("out msg nelems")),
        dtype=str(args.get("dtype", "")),
    )
