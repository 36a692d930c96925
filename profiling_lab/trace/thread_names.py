# SPDX-License-Identifier: Apache-2.0
"""What the operating system calls the threads of a program: `pt_nccl_watchdg`, `pt_autograd_0`."""

from __future__ import annotations

from profiling_lab.trace.nsys.source import SqliteSource
from profiling_lab.trace.trace import Trace


def thread_names(trace: Trace) -> dict[int, str]:
    """Names by thread number, of the threads that the tables read so far name; {} where none were noted."""
    if not isinstance(trace.source, SqliteSource) or not trace.file.columns("ThreadNames"):
        return {}
    rows = trace.file.select("ThreadNames", {"nameId": 0, "globalTid": 0})
    known = trace.source.threads.numbers
    return {
        known[tid]: trace.source.strings[name]
        for tid, name in zip(rows["globalTid"].tolist(), rows["nameId"].tolist(), strict=True)
        if tid in known
    }
