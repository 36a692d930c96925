# SPDX-License-Identifier: Apache-2.0
"""What a file says of its streams beyond their numbers."""

from __future__ import annotations

from dataclasses import dataclass

from profiling_lab.trace.nsys.source import SqliteSource
from profiling_lab.trace.trace import Trace

_TABLE = "TARGET_INFO_CUDA_STREAM"
# The numbers of CUPTI.
_KINDS = {1: "default", 2: "non-blocking", 3: "null"}
_UNKNOWN = 1 << 40


@dataclass(frozen=True, slots=True)
class Stream:
    """'' and None stand for what is not known."""

    kind: str
    """'default', 'non-blocking' (does not wait for the default stream), 'null' (the default stream itself)"""
    priority: int | None
    """lower is sooner, 0 the usual one"""


def read_streams(trace: Trace) -> dict[tuple[int, int], Stream]:
    """By process id and stream number; {} where the file describes none."""
    if not isinstance(trace.source, SqliteSource):
        return {}
    if not {"streamId", "processId"} <= set(trace.file.columns(_TABLE)):
        return {}
    rows = trace.file.select(_TABLE, {"streamId": -1, "processId": -1, "priority": _UNKNOWN, "flag": 0})
    return {
        (pid, stream): Stream(_KINDS.get(flag, ""), _priority(priority))
        for stream, pid, priority, flag in zip(*(column.tolist() for column in rows.values()), strict=True)
    }


def _priority(number: int) -> int | None:
    """Exported as an unsigned number of 32 bits: -5 reads 4294967291."""
    if number == _UNKNOWN:
        return None
    return number - (1 << 32) if number >= 1 << 31 else number
