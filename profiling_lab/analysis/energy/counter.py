# SPDX-License-Identifier: Apache-2.0
"""The energy counter of one GPU as a function of time."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.energy.fit import F64
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64
from profiling_lab.trace.extras import EnergySamples

_LEAST_CHANGES = 10
_JITTER_NS = 5e5
"""of such a clock"""
_MOSTLY = 0.99
_LATE_TIMES = 4
"""a change whose time is less certain than the usual one by this factor is left out"""


@dataclass(frozen=True, slots=True)
class Counter:
    """The changes of the counter, in time order; between them it is taken to rise evenly.

    A GPU changes it by a clock of its own: an H200 every 100.000 ms, to better than the reader can see. Where
    such a clock explains when each change was seen, its times stand for the reader's.
    """

    time_ns: F64
    joules: F64
    spread_ns: int
    """the uncertainty of a time"""

    @classmethod
    def of(cls, samples: EnergySamples) -> Counter:
        spread = float(np.median(samples.spread_ns)) if len(samples) else 0.0
        kept = np.flatnonzero(samples.spread_ns <= max(_LATE_TIMES * spread, 1.0))
        kept = kept[_longest_rise(samples.energy_mj[kept])]
        time, first = np.unique(samples.time_ns[kept], return_index=True)
        seen, joules = time.astype(np.float64), samples.energy_mj[kept][first] / 1e3
        clock = _by_a_clock(seen, samples.spread_ns[kept][first].astype(np.float64))
        if clock is None:
            return cls(seen, joules, round(spread))
        return cls(clock, joules, round(spread / np.sqrt(len(clock))))

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


def _by_a_clock(time_ns: F64, spread_ns: F64) -> F64 | None:
    """The times of an even clock that lie within what was seen; None if there is no such clock."""
    if len(time_ns) < _LEAST_CHANGES:
        return None
    steps = np.diff(time_ns)
    number = np.concatenate([[0.0], np.cumsum(np.maximum(np.rint(steps / np.median(steps)), 1))])
    clock = np.polyval(np.polyfit(number, time_ns - time_ns[0], 1), number) + time_ns[0]
    fits = np.abs(clock - time_ns) <= spread_ns + _JITTER_NS
    return clock if fits.mean() >= _MOSTLY else None


def _longest_rise(energy: I64) -> slice:
    """The counter begins anew where the driver was loaded again: the longest part without that."""
    ends = np.append(np.flatnonzero(np.diff(energy) < 0) + 1, len(energy))
    begins = np.concatenate([[0], ends[:-1]])
    longest = int((ends - begins).argmax())
    return slice(int(begins[longest]), int(ends[longest]))
