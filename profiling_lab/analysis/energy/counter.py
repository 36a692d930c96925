# SPDX-License-Identifier: Apache-2.0
"""The energy counter of one GPU as a function of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiling_lab.analysis.energy.fit import F64
from profiling_lab.trace.columns import I64
from profiling_lab.trace.extras import EnergySamples

_LATE_TIMES = 4
"""a change whose time is less certain than the usual one by this factor is left out"""


@dataclass(frozen=True, slots=True)
class Counter:
    """The changes of the counter, in time order; between them it is taken to rise evenly."""

    time_ns: F64
    joules: F64
    spread_ns: int
    """the median uncertainty of a time"""

    @classmethod
    def of(cls, samples: EnergySamples) -> Counter:
        spread = float(np.median(samples.spread_ns)) if len(samples) else 0.0
        kept = np.flatnonzero(samples.spread_ns <= max(_LATE_TIMES * spread, 1.0))
        kept = kept[_longest_rise(samples.energy_mj[kept])]
        time, first = np.unique(samples.time_ns[kept], return_index=True)
        return cls(time.astype(np.float64), samples.energy_mj[kept][first] / 1e3, round(spread))

    def __len__(self) -> int:
        return len(self.time_ns)

    @property
    def period_ns(self) -> float:
        """From one change to the next, the median."""
        return float(np.median(np.diff(self.time_ns)))

    def at(self, time_ns: F64 | float) -> F64:
        return np.asarray(np.interp(time_ns, self.time_ns, self.joules))

    def between(self, start_ns: F64, end_ns: F64) -> F64:
        return self.at(end_ns) - self.at(start_ns)


def _longest_rise(energy: I64) -> slice:
    """The counter begins anew where the driver was loaded again: the longest part without that."""
    ends = np.append(np.flatnonzero(np.diff(energy) < 0) + 1, len(energy))
    begins = np.concatenate([[0], ends[:-1]])
    longest = int((ends - begins).argmax())
    return slice(int(begins[longest]), int(ends[longest]))
