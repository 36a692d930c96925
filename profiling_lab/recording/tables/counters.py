# SPDX-License-Identifier: Apache-2.0
"""PYREC_COUNTERS: the samples of hardware counters, from the metadata that counters/sampler.py writes."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator

import numpy as np

from profiling_lab.recording.meta_names import COUNTERS
from profiling_lab.recording.spool import Rows, Spool
from profiling_lab.recording.tables.activity import arrow_table, null_where
from profiling_lab.trace.extras import COUNTERS as QUANTITIES

_IN_PERCENT = ("sm_active", "issued", "tensor")
_PPM_OF_PERCENT = 1e4


def build(spool: Spool) -> Iterator[Rows]:
    pieces = [json.loads(text) for name, text in spool.meta.items() if name.startswith(COUNTERS)]
    if not pieces:
        return
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("device", "start", "end", *QUANTITIES)}
    for device, used, *packed in pieces:
        start, end, values = (zlib.decompress(base64.b64decode(text)) for text in packed)
        columns["start"].append(np.frombuffer(start, np.int64) - np.int64(spool.start_ns))
        columns["end"].append(np.frombuffer(end, np.int64) - np.int64(spool.start_ns))
        count = len(columns["start"][-1])
        columns["device"].append(np.full(count, device, np.int64))
        table = np.frombuffer(values, np.float64).reshape(count, len(used))
        for name in QUANTITIES:
            known = table[:, used.index(name)] if name in used else np.full(count, np.nan)
            columns[name].append(known * _PPM_OF_PERCENT if name in _IN_PERCENT else known)
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    order = np.lexsort((whole["start"], whole["device"]))
    rows = {name: values[order] for name, values in whole.items()}
    stored = {
        column: null_where(np.nan_to_num(rows[name]).round().astype(np.int64), np.isnan(rows[name]))
        for name, column in QUANTITIES.items()
    }
    stored |= {"start": rows["start"], "end": rows["end"], "deviceId": rows["device"]}
    name = "PYREC_COUNTERS"
    yield name, arrow_table(name, stored | {"globalPid": spool.global_pid}, len(order))
