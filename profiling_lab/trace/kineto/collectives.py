# SPDX-License-Identifier: Apache-2.0
"""The collectives of torch.profiler's communication kernels, decoded on first use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, Operations, unique
from profiling_lab.trace.extras import FARTHEST_BYTES, CollectiveFacts
from profiling_lab.trace.facts import whole_number
from profiling_lab.trace.operation_classes import collective_kind

_ELEMENT_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "float8": 1, "int8": 1, "uint8": 1,
    "half": 2, "bfloat16": 2, "short": 2, "float16": 2, "int16": 2,
    "float": 4, "int": 4, "float32": 4, "int32": 4,
    "double": 8, "long": 8, "float64": 8, "int64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective; '' and -1 mean unknown."""

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
    """The operations with collective data: `of(row)` by row of Operations."""

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
        return {text: _collective(self._texts[text]) for text in unique(self._text).tolist()}


def collectives(text: I32, texts: tuple[str, ...]) -> Collectives:
    rows = np.flatnonzero(text >= 0)
    return Collectives(rows, text[rows], texts)


def _collective(json: str) -> Collective:
    try:
        args: dict[str, Any] = msgspec.json.decode(json, type=dict)
    except msgspec.MsgspecError:  # an invalid JSON escape
        args = {}
    members = tuple(int(rank) for rank in re.findall(r"\d{1,9}", str(args.get("process group ranks", ""))))
    return Collective(
        name=str(args.get("collective name", "")),
        group=str(args.get("process group name", "")),
        members=members,
        size=whole_number(args.get("group size")) if "group size" in args else len(members) or -1,
        sequence=whole_number(args.get("seq")),
        elements_in=whole_number(args.get("in msg nelems")),
        elements_out=whole_number(args.get("out msg nelems")),
        dtype=str(args.get("dtype", "")),
    )


def collective_facts(
    noted: Collectives,
    groups: dict[str, tuple[int, ...]],
    operations: Operations,
    rows: npt.NDArray[np.intp],
) -> list[CollectiveFacts | None]:
    """groups: the ranks of each process group, as `process_groups` finds them."""
    out: list[CollectiveFacts | None] = []
    for row, name in zip(rows.tolist(), operations.name[rows].tolist(), strict=True):
        found = noted.of(row)
        if found is None:
            out.append(None)
            continue
        # "coalesced" is less specific than the kernel.
        kind = collective_kind(found.name, collective_kind(operations.short_names[name]))
        # Kernels have a truncated list for a large group; an incomplete list is worse than none.
        members = found.members if len(found.members) == found.size else groups.get(found.group, ())
        elements = found.elements_out if kind == "ReduceScatter" else found.elements_in
        element = _ELEMENT_BYTES.get(found.dtype.lower().partition("_")[0], 0)
        size_bytes = elements * element
        out.append(
            CollectiveFacts(
                kind=kind,
                group=found.group,
                members=members if len(members) == found.size else (),
                size=max(found.size, 0),
                sequence=found.sequence,
                size_bytes=size_bytes if element and 0 <= size_bytes < FARTHEST_BYTES else -1,
            )
        )
    return out


def process_groups(job: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """The ranks of each process group, if torch.profiler stored them; else {}."""
    listed = job.get("pg_config")
    groups = [group for group in listed if isinstance(group, dict)] if isinstance(listed, list) else []
    return {
        str(group.get("pg_name")): tuple(map(whole_number, ranks))
        for group in groups
        if isinstance(ranks := group.get("ranks"), list)
    }
