# SPDX-License-Identifier: Apache-2.0
"""What is in a trace file, how it was captured, and which option would have recorded what is missing."""

from __future__ import annotations

from profiling_lab.records import replace
from profiling_lab.trace import Trace
from profiling_lab.trace.facts import Gpu, Recorded, TraceInfo
from profiling_lab.trace.window import ranks

__all__ = ["Gpu", "Recorded", "TraceInfo", "info"]


def info(trace: Trace) -> TraceInfo:
    """Read the facts. Works on traces without a GPU operation too."""
    return replace(trace.source.info(trace), ranks=_rank_texts(trace))


def _rank_texts(trace: Trace) -> tuple[str, ...]:
    """Which process is which rank; nothing for one process without a rank."""
    known, noted = ranks(trace)
    if len(known) < 2 and not noted:
        return ()
    told = "" if noted else " (by process id: the file does not name ranks)"
    return tuple(f"rank {rank} is pid {trace.pids[process]}{told}" for rank, process in sorted(known.items()))
