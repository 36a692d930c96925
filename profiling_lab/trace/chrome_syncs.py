# SPDX-License-Identifier: Apache-2.0
"""Waits: of the host for a stream, an event or all of a device, and of a stream for an event of another."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from profiling_lab.trace.chrome_events import Table
from profiling_lab.trace.columns import I32, I64, NO_SEQUENCE, U8


class SyncKind(IntEnum):
    """Who waits for what: the numbers of CUPTI."""

    UNKNOWN = 0
    EVENT = 1
    STREAM_WAIT_EVENT = 2
    """a stream waits, the host does not"""
    STREAM = 3
    CONTEXT = 4


_KINDS = {
    "event sync": SyncKind.EVENT,
    "stream wait event": SyncKind.STREAM_WAIT_EVENT,
    "stream sync": SyncKind.STREAM,
    "context sync": SyncKind.CONTEXT,
}


@dataclass(frozen=True, slots=True)
class Syncs:
    """One row per wait. Numbers that the file does not tell are -1."""

    kind: U8
    """SyncKind"""
    start_ns: I64
    end_ns: I64
    process: I32
    device: I32
    stream: I64
    """the stream that waits or is waited for"""
    correlation: I64
    """of the API call that waits"""
    waits_for_stream: I64
    """where the event was recorded that is waited for"""
    waits_for_correlation: I64
    """the API call that recorded it"""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def is_host(self) -> npt.NDArray[np.bool_]:
        """Waits of the host; of the others only a stream knows."""
        return np.asarray(self.kind != SyncKind.STREAM_WAIT_EVENT)


def chrome_syncs(table: Table, texts: tuple[str, ...], process: I32, device: I32) -> Syncs:
    """From the events of the category cuda_sync. Without the argument that says the kind, their name does."""
    said = table["kind"]
    label = np.where(np.isin(said, [i for i in np.unique(said).tolist() if texts[i]]), said, table["name"])
    used, number = np.unique(label, return_inverse=True)
    kinds = np.array([_KINDS.get(texts[i].lower(), SyncKind.UNKNOWN) for i in used.tolist()], dtype=np.uint8)

    def known(column: str) -> I64:
        return np.where(table[column] == NO_SEQUENCE, -1, table[column])

    return Syncs(
        kind=kinds[number],
        start_ns=table["start_ns"],
        end_ns=table["end_ns"],
        process=process,
        device=device,
        stream=known("stream"),
        correlation=known("correlation"),
        waits_for_stream=known("waits_for_stream"),
        waits_for_correlation=known("waits_for_correlation"),
    )
