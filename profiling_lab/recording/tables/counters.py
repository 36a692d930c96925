# SPDX-License-Identifier: Apache-2.0
"""PYREC_COUNTERS: the samples of hardware counters, from the pieces of metadata that counters/sampler.py writes."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator

import numpy as np

from profiling_lab.recording.counters.sampler import CHOICES
from profiling_lab.recording.meta_names import COUNTERS
from profiling_lab.recording.spool import Rows, Spool
from profiling_lab.recording.tables.activity import arrow_table

_STORED_AS = {
    "dram_read": "dramReadBytes", "dram_written": "dramWrittenBytes", "sm_active": "smActivePct",
    "issued": "issuedPct", "tensor": "tensorPct", "pcie_read": "pcieReadBytes",
    "pcie_written": "pcieWrittenBytes", "nvlink_received": "nvlinkReceivedBytes", "nvlink_sent": "nvlinkSentBytes",
}  # fmt: skip


def build(spool: Spool) -> Iterator[Rows]:
    pieces = [json.loads(text) for name, text in spool.meta.items() if name.startswith(COUNTERS)]
    if not pieces:
        return
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("device", "start", "end", *CHOICES)}
    for device, used, *packed in pieces:
        start, end, values = (zlib.decompress(base64.b85decode(text)) for text in packed)
        columns["start"].append(np.frombuffer(start, np.int64) - spool.start_ns)
        columns["end"].append(np.frombuffer(end, np.int64) - spool.start_ns)
        count = len(columns["start"][-1])
        columns["device"].append(np.full(count, device, np.int64))
        table = np.frombuffer(values, np.float64).reshape(count, len(used))
        for name in CHOICES:
            known = table[:, used.index(name)] if name in used else np.full(count, np.nan)
            columns[name].append(known)
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    order = np.lexsort((whole["start"], whole["device"]))
    rows = {name: values[order] for name, values in whole.items()}
    stored = {_STORED_AS[name]: rows[name] for name in CHOICES}
    stored |= {"start": rows["start"], "end": rows["end"], "deviceId": rows["device"]}
    table_name = "PYREC_COUNTERS"
    yield table_name, arrow_table(table_name, stored | {"globalPid": spool.global_pid}, len(order))
