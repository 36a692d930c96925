# SPDX-License-Identifier: Apache-2.0
"""The hardware counters that our recorder samples with --counters."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import FARTHEST_NS
from profiling_lab.trace.extras import COUNTERS, CounterSamples
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.process_ids import Registry, process_part

_UNKNOWN = -1
_MOST = 1 << 53
"""larger values are damage"""
_LONGEST_TIMES = 4
"""the usual sample: CUPTI's first one begins long before the sampling"""


def read_counters(file: SqliteFile, processes: Registry) -> tuple[CounterSamples, ...]:
    if not file.columns("PYREC_COUNTERS"):
        return ()
    wanted: dict[str, int | str] = {"start": 0, "end": 0, "globalPid": 0, "deviceId": 0}
    wanted |= dict.fromkeys(COUNTERS.values(), _UNKNOWN)
    rows = file.select("PYREC_COUNTERS", wanted)
    length = rows["end"] - rows["start"]
    sane = (np.abs(rows["start"]) < FARTHEST_NS) & (length > 0)
    if sane.any():
        sane &= length <= _LONGEST_TIMES * np.median(length[sane])
    rows = {name: column[sane] for name, column in rows.items()}
    process = processes.number(process_part(rows["globalPid"]))
    out = []
    for number, device in sorted(set(zip(process.tolist(), rows["deviceId"].tolist(), strict=True))):
        mine = np.flatnonzero((process == number) & (rows["deviceId"] == device))
        mine = mine[np.argsort(rows["start"][mine], kind="stable")]
        values = {name: rows[column][mine] for name, column in COUNTERS.items()}
        whole = {name: value for name, value in values.items() if ((value >= 0) & (value < _MOST)).all()}
        out.append(CounterSamples(number, device, rows["start"][mine], rows["end"][mine], whole))
    return tuple(out)
