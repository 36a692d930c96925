# SPDX-License-Identifier: Apache-2.0
"""Which rank a file belongs to, of how many, and how its clock relates to the others'."""

from __future__ import annotations

import re
from pathlib import Path

from profiling_lab.records import dataclass
from profiling_lab.trace import Trace
from profiling_lab.trace.facts import whole_number

# run.rank3.sqlite, job-rank-3.json.gz, r3.sqlite
_IN_NAME = re.compile(r"(?:^|[^a-z])(?:rank|r)[-_.=]?(\d{1,6})(?!\d)", re.IGNORECASE)
_MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Clock:
    """What a file says of its clock: adding `offset_ns` to its times makes them nanoseconds since 1970."""

    is_wall: bool
    """the file ties its times to the calendar; else they only make sense within the file"""
    offset_ns: int


def clock(trace: Trace) -> Clock:
    """The clock of a file."""
    offset_ns = trace.source.wall_clock(trace)
    return Clock(offset_ns is not None, offset_ns or 0)


@dataclass(frozen=True, slots=True)
class NotedRank:
    """The place of a file in its job, as far as it says. None: it does not."""

    rank: int | None
    world_size: int | None
    said_by: str
    """'recording' or 'name', '' where `rank` is None"""


def noted_rank_of(trace: Trace, pid: int) -> NotedRank:
    """The place of one of several processes in a file: only our recorder notes it, in merged recordings."""
    facts = trace.process_facts.get(pid, {})
    rank = _number(facts.get("rank"))
    return NotedRank(rank, _number(facts.get("world_size")), "recording" if rank is not None else "")


def noted_rank(trace: Trace) -> NotedRank:
    """As torch.profiler or our recorder noted it, else by the name of the file."""
    facts = trace.job_facts
    rank, world = _number(facts.get("rank")), _number(facts.get("world_size"))
    if rank is not None:
        return NotedRank(rank, world, "recording")
    found = _IN_NAME.findall(Path(trace.path).name)
    return NotedRank(int(found[-1]), None, "name") if found else NotedRank(None, world, "")


def _number(value: object) -> int | None:
    number = whole_number(value)
    return number if 0 <= number < _MOST_RANKS else None
