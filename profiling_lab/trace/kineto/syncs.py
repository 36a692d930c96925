# SPDX-License-Identifier: Apache-2.0
"""Synchronisations, from torch.profiler's events of the category cuda_sync."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import I32, NO_SEQUENCE, SyncKind, Syncs, full
from profiling_lab.trace.kineto.events import Table

_KINDS = {
    "event sync": SyncKind.EVENT,
    "stream wait event": SyncKind.STREAM_WAITS_EVENT,
    "stream sync": SyncKind.STREAM,
    "context sync": SyncKind.DEVICE,
}


def chrome_syncs(table: Table, texts: tuple[str, ...], process: I32) -> Syncs:
    used, number = np.unique(table["kind"], return_inverse=True)
    kinds = np.array([_KINDS.get(texts[i].lower(), SyncKind.UNKNOWN) for i in used.tolist()], dtype=np.uint8)
    correlation = np.where(table["correlation"] == NO_SEQUENCE, -1, table["correlation"])
    stream = full(len(process), -1)
    return Syncs(table["start_ns"], table["end_ns"], process, correlation, kinds[number], stream)
