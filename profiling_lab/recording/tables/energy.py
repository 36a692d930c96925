# SPDX-License-Identifier: Apache-2.0
"""PYREC_ENERGY: the changes of the energy counters, from the pieces of metadata that sampler.py writes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from profiling_lab.recording.energy.sampler import COLUMNS
from profiling_lab.recording.meta_names import ENERGY
from profiling_lab.recording.spool import Rows, Spool
from profiling_lab.recording.tables.activity import arrow_table, null_where

_UNKNOWN = -1
_STORED_AS = {
    "device": "deviceId", "spread": "spread", "energy": "energyMj", "power": "powerMw",
    "instant": "instantPowerMw", "sm_clock": "smClockMhz", "limits": "clockLimits",
    "power_limit": "powerLimitMw", "memory_clock": "memoryClockMhz", "temperature": "temperatureC",
}  # fmt: skip


def build(spool: Spool) -> Iterator[Rows]:
    found = [row for name, text in spool.meta.items() if name.startswith(ENERGY) for row in json.loads(text)]
    if not found:
        return
    known = [[_UNKNOWN if value is None else value for value in row] for row in found]
    rows = np.array(known, dtype=np.int64).reshape(-1, len(COLUMNS))
    rows = rows[np.lexsort((rows[:, COLUMNS.index("time")], rows[:, COLUMNS.index("device")]))]
    column = {name: rows[:, i] for i, name in enumerate(COLUMNS)}
    values = {_STORED_AS[name]: null_where(column[name], column[name] < 0) for name in _STORED_AS}
    start = column["time"] - np.int64(spool.start_ns)
    yield (
        "PYREC_ENERGY",
        arrow_table("PYREC_ENERGY", {**values, "start": start, "globalPid": spool.global_pid}, len(rows)),
    )
