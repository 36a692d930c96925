# SPDX-License-Identifier: Apache-2.0
"""The ranges that are looked at, and what was launched while they were open."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.stats import merged_names, possible
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, U8
from profiling_lab.trace.trace import Trace

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Launched:
    """GPU operations that have a call."""

    row: npt.NDArray[np.intp]
    """of the operations"""
    call_start_ns: I64
    call_end_ns: I64
    call_thread: I32
    start_ns: I64
    end_ns: I64


@dataclass(frozen=True, slots=True)
class OpenRanges:
    """One row per range, and what was launched meanwhile."""

    start_ns: I64
    end_ns: I64
    closed: npt.NDArray[np.bool_]
    """it ended, and at a time that a recording can have"""
    thread: I32
    domain: I64
    style: U8
    name: I32
    names: tuple[str, ...]
    launched: Launched


def open_ranges(trace: Trace, rows: npt.NDArray[np.intp], merge_numbers: bool) -> OpenRanges:
    """`rows` of the trace's ranges. merge_numbers: see `ranges`."""
    every = trace.ranges
    start_ns, end_ns = every.start_ns[rows], every.end_ns[rows]
    shown = tuple(_NUMBER.sub("*", name) for name in every.names) if merge_numbers else every.names
    name, names = merged_names(every.name, shown)
    operations, calls = trace.operations, trace.calls
    call = trace.attribution.call if len(operations) else np.empty(0, dtype=np.int32)
    launched = np.flatnonzero(call >= 0)
    of = call[launched]
    return OpenRanges(
        start_ns=start_ns,
        end_ns=end_ns,
        closed=possible(start_ns, end_ns),
        thread=every.thread[rows],
        domain=every.domain[rows],
        style=trace.range_styles[rows],
        name=name[rows],
        names=names,
        launched=Launched(
            row=launched,
            call_start_ns=calls.start_ns[of],
            call_end_ns=calls.end_ns[of],
            call_thread=calls.thread[of],
            start_ns=operations.start_ns[launched],
            end_ns=operations.end_ns[launched],
        ),
    )
