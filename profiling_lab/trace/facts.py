# SPDX-License-Identifier: Apache-2.0
"""What can be said of a trace file as a whole. '' and None say that the file does not tell."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

OUR_METHOD = "software (activity records of CUPTI)"
_LAST_SECOND = 253_402_300_799  # of the year 9999, the last that a date can have


@dataclass(frozen=True, slots=True)
class Recorded:
    """One kind of thing a trace can hold."""

    key: str
    what: str
    rows: int
    missing: str
    """what would have recorded it, where there are no rows; '' where there is nothing to say"""


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    compute: str
    """compute capability, '' if unknown"""
    multiprocessors: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """Facts about a file. '' and None say that the file does not tell."""

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
    """what our recorder noted about itself: versions, cost, dropped records"""
    options: tuple[str, ...]
    """of the recorder, those that the file tells of"""
    method: str
    """how GPU work was timed"""
    ranks: tuple[str, ...]
    """`rank 0 is pid 12`, where there are several or the recorder noted it"""
    events: tuple[int, int] | None
    """CUDA events that the driver produced, and that the recorder kept"""
    overhead_ns: int | None
    """time the profiler took from the program, as far as the file tells"""
    warnings: tuple[str, ...]
    """diagnostics of the recorder from warning up"""


def utc(epoch_ns: int) -> str:
    """A moment as people write it."""
    seconds = min(max(epoch_ns // 1_000_000_000, 0), _LAST_SECOND)
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def whole_number(value: Any, missing: int = -1) -> int:
    """An argument as an integer: some versions write numbers as text."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return missing
    return number if -(2**63) <= number < 2**63 else missing
