# SPDX-License-Identifier: Apache-2.0
"""Properties of a whole trace file. '' and None mean unknown."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from profiling_lab.records import dataclass

OUR_METHOD = "software (activity records of CUPTI)"
_LAST_SECOND = 253_402_300_799  # of the year 9999, the last one of datetime


@dataclass(frozen=True, slots=True)
class Recorded:
    """One kind of data that a trace may contain."""

    key: str
    what: str
    rows: int
    missing: str
    """how to record it, if there are no rows; '' if no hint is needed"""


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    compute: str
    """compute capability, '' if unknown"""
    multiprocessors: int  # word: quoted
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """Properties of a file. '' and None mean unknown."""

    path: str
    file_bytes: int
    product: str
    schema: str
    started_utc: str
    duration_ns: int | None
    gpus: tuple[Gpu, ...]
    driver: str
    processes: tuple[str, ...]
    recorded: tuple[Recorded, ...]
    recorder: tuple[tuple[str, str], ...]
    """metadata of our recorder: versions, overhead, dropped records"""
    options: tuple[str, ...]
    """recorder options, as far as the file contains them"""
    method: str
    """how GPU work was timed"""
    ranks: tuple[str, ...]
    """`rank 0 is pid 12`, if there are several or the recorder stored it"""
    events: tuple[int, int] | None
    """CUDA events that the driver produced, and that the recorder kept"""
    overhead_ns: int | None
    """profiler overhead, if the file contains it"""
    warnings: tuple[str, ...]
    """diagnostics of the recorder from warning up"""


def utc(epoch_ns: int) -> str:
    """A time as a readable UTC string."""
    seconds = min(max(epoch_ns // 1_000_000_000, 0), _LAST_SECOND)
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def whole_number(value: Any, missing: int = -1) -> int:
    """An argument as an integer: some versions write numbers as text."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return missing
    return number if -(2**63) <= number < 2**63 else missing
