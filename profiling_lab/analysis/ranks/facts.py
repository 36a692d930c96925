# SPDX-License-Identifier: Apache-2.0
"""Which rank a file belongs to, of how many, and how its clock stands to the others'."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.trace import Trace
from profiling_lab.trace.kineto.events import whole
from profiling_lab.trace.kineto.source import ChromeSource

# run.rank3.sqlite, job-rank-3.json.gz, r3.sqlite
_IN_NAME = re.compile(r"(?:^|[^a-z])(?:rank|r)[-_.=]?(\d{1,6})(?!\d)", re.IGNORECASE)
_MOST_RANKS = 1 << 20
_EPOCH_NS = 10**18  # September 2001: an earlier time is not a date but a running clock


@dataclass(frozen=True, slots=True)
class Clock:
    """What a file says of its clock: adding `offset_ns` to its times makes them nanoseconds since 1970."""

    is_wall: bool
    """the file ties its times to the calendar; else they only make sense within the file"""
    offset_ns: int


def clock(trace: Trace) -> Clock:
    """The clock of a file."""
    if isinstance(trace.source, ChromeSource):
        # The reader has added baseTimeNanoseconds already; older files count microseconds since 1970 anyhow.
        first = int(trace.operations.start_ns.min()) if len(trace.operations) else 0
        return Clock(first > _EPOCH_NS, 0)
    if "utcEpochNs" in trace.file.columns("TARGET_INFO_SESSION_START_TIME"):
        started = trace.file.select("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": 0})["utcEpochNs"]
        if len(started) and started[0] > 0:
            return Clock(True, int(started[0]))
    return Clock(False, 0)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a file in its job, as far as it says. None: it does not."""

    rank: int | None
    world_size: int | None
    said_by: str
    """'recording' or 'name', '' where `rank` is None"""


def place_of(trace: Trace, pid: int) -> Place:
    """The place of one of several processes in a file: only our recorder notes it, in merged recordings."""
    facts = trace.process_facts.get(pid, {})
    rank = _number(facts.get("rank"))
    return Place(rank, _number(facts.get("world_size")), "recording" if rank is not None else "")


def place(trace: Trace) -> Place:
    """As torch.profiler or our recorder noted it, else by the name of the file."""
    noted: object = trace.recorder_facts
    if isinstance(trace.source, ChromeSource):
        noted = trace.source.events.facts.get("distributedInfo")
    facts = noted if isinstance(noted, dict) else {}
    rank, world = _number(facts.get("rank")), _number(facts.get("world_size"))
    if rank is not None:
        return Place(rank, world, "recording")
    found = _IN_NAME.findall(Path(trace.path).name)
    return Place(int(found[-1]), None, "name") if found else Place(None, world, "")


def process_groups(source: ChromeSource) -> dict[str, tuple[int, ...]]:
    """The ranks of each process group, as torch.profiler notes them; {} where it does not."""
    distributed = source.events.facts.get("distributedInfo")
    listed = distributed.get("pg_config") if isinstance(distributed, dict) else None
    groups = [group for group in listed if isinstance(group, dict)] if isinstance(listed, list) else []
    return {
        str(group.get("pg_name")): tuple(map(whole, ranks))
        for group in groups
        if isinstance(ranks := group.get("ranks"), list)
    }


def _number(value: object) -> int | None:
    number = whole(value)
    return number if 0 <= number < _MOST_RANKS else None
