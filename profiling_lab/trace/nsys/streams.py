# SPDX-License-Identifier: Apache-2.0
"""The properties of streams."""

from __future__ import annotations

from profiling_lab.trace.extras import Stream
from profiling_lab.trace.nsys.sqlite_file import SqliteFile

_TABLE = "TARGET_INFO_CUDA_STREAM"
# The values of CUPTI.
_KINDS = {1: "default", 2: "non-blocking", 3: "null"}
_UNKNOWN = 1 << 40


def read_streams(file: SqliteFile) -> dict[tuple[int, int], Stream]:
    """By process id and stream number; {} if the file describes none."""
    if not {"streamId", "processId"} <= set(file.columns(_TABLE)):
        return {}
    rows = file.select(_TABLE, {"streamId": -1, "processId": -1, "priority": _UNKNOWN, "flag": 0})
    return {
        (pid, stream): Stream(_KINDS.get(flag, ""), _priority(priority))
        for stream, pid, priority, flag in zip(*(column.tolist() for column in rows.values()), strict=True)
    }


def _priority(number: int) -> int | None:
    """Exported as an unsigned number of 32 bits: -5 reads 4294967291."""
    if number == _UNKNOWN:
        return None
    return number - (1 << 32) if number >= 1 << 31 else number
