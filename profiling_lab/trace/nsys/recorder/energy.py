# SPDX-License-Identifier: Apache-2.0
"""The energy counters that our recorder reads with --energy. nsys has no table for them."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import FARTHEST_NS
from profiling_lab.trace.extras import UNKNOWN_READING, EnergySamples
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.process_ids import Registry, process_part

_READINGS = {
    "power_mw": "powerMw",
    "instant_power_mw": "instantPowerMw",
    "power_limit_mw": "powerLimitMw",
    "sm_clock_mhz": "smClockMhz",
    "memory_clock_mhz": "memoryClockMhz",
    "temperature_c": "temperatureC",
    "clock_limits": "clockLimits",
}
_MOST = 1 << 53
"""larger values are damage"""


def read_energy(file: SqliteFile, processes: Registry) -> tuple[EnergySamples, ...]:
    if not file.columns("PYREC_ENERGY"):
        return ()
    wanted: dict[str, int | str] = {"start": 0, "spread": 0, "globalPid": 0, "deviceId": 0}
    wanted |= dict.fromkeys(("energyMj", *_READINGS.values()), UNKNOWN_READING)
    rows = file.select("PYREC_ENERGY", wanted)
    sane = (np.abs(rows["start"]) < FARTHEST_NS) & (rows["energyMj"] >= 0) & (rows["energyMj"] < _MOST)
    rows = {name: column[sane] for name, column in rows.items()}
    process = processes.number(process_part(rows["globalPid"]))
    out = []
    for number, device in sorted(set(zip(process.tolist(), rows["deviceId"].tolist(), strict=True))):
        mine = np.flatnonzero((process == number) & (rows["deviceId"] == device))
        mine = mine[np.argsort(rows["start"][mine], kind="stable")]
        readings = {
            ours: np.where(np.abs(rows[name][mine]) < _MOST, rows[name][mine], UNKNOWN_READING)
            for ours, name in _READINGS.items()
        }
        out.append(
            EnergySamples(
                process=number,
                device=device,
                time_ns=rows["start"][mine],
                spread_ns=np.clip(rows["spread"][mine], 0, FARTHEST_NS),
                energy_mj=rows["energyMj"][mine],
                **readings,
            )
        )
    return tuple(out)
