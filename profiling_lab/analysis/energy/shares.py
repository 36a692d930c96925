# SPDX-License-Identifier: Apache-2.0
"""How long each part of a program has run on one GPU up to given moments; where several run at once, they
share the time, so that the parts and idle time sum to what passed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.energy.fit import F64
from profiling_lab.trace.columns import I32, I64


def passed_ns(start_ns: I64, end_ns: I64, part: I32, parts: int, at_ns: F64) -> F64:
    """[moments, parts + 1]: cumulated times, of which only differences count; the last part is idle time.

    Of operations on one GPU; each belongs to one of `parts`.
    """
    moment, position = np.unique(np.concatenate([start_ns, end_ns]), return_inverse=True)
    begin, end = position[: len(start_ns)], position[len(start_ns) :]
    length = np.diff(moment).astype(np.float64)
    running = _running(begin, end, len(moment))
    out = np.empty((len(at_ns), parts + 1))
    for number in range(parts):
        of = part == number
        mine = length * _running(begin[of], end[of], len(moment)) / np.maximum(running, 1)
        out[:, number] = _up_to(moment, mine, at_ns)
    out[:, parts] = at_ns - _up_to(moment, np.where(running > 0, length, 0.0), at_ns)
    return out


def _up_to(moment: I64, length: F64, at_ns: F64) -> F64:
    return np.asarray(np.interp(at_ns, moment, np.concatenate([[0.0], np.cumsum(length)])))


def _running(begin: npt.NDArray[np.intp], end: npt.NDArray[np.intp], moments: int) -> I64:
    """How many operations run between each moment and the next."""
    change = np.bincount(begin, minlength=moments) - np.bincount(end, minlength=moments)
    return np.asarray(np.cumsum(change)[:-1], dtype=np.int64)
