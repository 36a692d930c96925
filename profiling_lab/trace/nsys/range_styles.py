# SPDX-License-Identifier: Apache-2.0
"""The styles of NVTX ranges: push/pop or start/end."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import U8, full
from profiling_lab.trace.extras import Style
from profiling_lab.trace.nsys.nvtx import PUSH_POP, START_END
from profiling_lab.trace.nsys.sqlite_file import PART, SqliteFile
from profiling_lab.trace.source import Tables


def read_range_styles(file: SqliteFile, whole: Tables) -> U8:
    """The Style per range."""
    pushed = full(len(whole.ranges), Style.PUSH_POP, np.uint8)
    table = file.newest("NVTX_EVENTS")
    if table is None or not len(pushed):
        return pushed
    started = f'SELECT count(*) FROM "{table}" WHERE eventType = {START_END} AND {PART}'
    if not sum(part.sum() for part in file.integers(started, 1, file.parts(table))):
        return pushed
    # The same rows and order as in read_nvtx.
    rows = file.select(
        table,
        {"eventType": 0, "globalTid": 0, "endGlobalTid": 0},
        f"eventType IN ({PUSH_POP}, {START_END}) AND start IS NOT NULL",
    )
    across = (rows["endGlobalTid"] != 0) & (rows["endGlobalTid"] != rows["globalTid"])
    kind = np.where(across, Style.ACROSS_THREADS, Style.START_END)
    return np.where(rows["eventType"] == START_END, kind, Style.PUSH_POP).astype(np.uint8)
