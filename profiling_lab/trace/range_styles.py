# SPDX-License-Identifier: Apache-2.0
"""How NVTX ranges were made, read when it is asked for."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from profiling_lab.trace.columns import U8, full
from profiling_lab.trace.nsys.nvtx import PUSH_POP, START_END
from profiling_lab.trace.nsys.source import SqliteSource
from profiling_lab.trace.nsys.sqlite_file import PART
from profiling_lab.trace.trace import Trace


class Style(IntEnum):
    """Of a range. What was pushed on a thread nests there; what was started may end anywhere."""

    PUSH_POP = 0
    START_END = 1
    ACROSS_THREADS = 2
    """started on one thread and ended on another"""
    OPERATOR = 3
    """an operator or annotation of torch.profiler"""


def read_range_styles(trace: Trace) -> U8:
    """The Style per range of the trace."""
    if not isinstance(trace.source, SqliteSource):
        return full(len(trace.ranges), Style.OPERATOR, np.uint8)
    whole = trace.whole.ranges
    table = trace.file.newest("NVTX_EVENTS")
    if table is None or not len(whole):
        return full(len(trace.ranges), Style.PUSH_POP, np.uint8)
    started = f'SELECT count(*) FROM "{table}" WHERE eventType = {START_END} AND {PART}'
    if not sum(part.sum() for part in trace.file.integers(started, 1, trace.file.parts(table))):
        return full(len(trace.ranges), Style.PUSH_POP, np.uint8)
    # The rows, and the order, in which read_nvtx reads ranges.
    rows = trace.file.select(
        table,
        {"eventType": 0, "globalTid": 0, "endGlobalTid": 0},
        f"eventType IN ({PUSH_POP}, {START_END}) AND start IS NOT NULL",
    )
    across = (rows["endGlobalTid"] != 0) & (rows["endGlobalTid"] != rows["globalTid"])
    kind = np.where(across, Style.ACROSS_THREADS, Style.START_END)
    style = np.where(rows["eventType"] == START_END, kind, Style.PUSH_POP).astype(np.uint8)
    return np.asarray(style[trace.range_rows], dtype=np.uint8)
