# SPDX-License-Identifier: Apache-2.0
"""How the memory that lines hold grows from step to step: what leaks."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.memory.devices import DeviceMemory, Place, device_memories
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64
from profiling_lab.trace.step_windows import StepWindows, step_windows
from profiling_lab.trace.trace import Trace

LEAST_STEPS = 3
"""ends of steps: fewer do not show a trend"""


@dataclass(frozen=True, slots=True)
class GrowthRow:
    """What one line held at the end of each step."""

    key: str
    pid: int
    device: int
    place: Place
    grown_bytes: int
    """from the end of the first step to that of the last; the first one also makes what stays, so it is not
    counted as growth"""
    per_step_bytes: int
    """the median growth of a step"""
    steps_grown: int
    first_bytes: int
    last_bytes: int

    def leaks(self, steps: int) -> bool:
        """Whether it grew in nearly every step."""
        return self.grown_bytes > 0 and self.steps_grown >= max(2, 0.8 * (steps - 1))


@dataclass(frozen=True, slots=True)
class GrowthResult:
    """Rows by growth, the largest first."""

    rows: tuple[GrowthRow, ...]
    steps: int
    how: str
    """how the steps were found"""
    held_bytes: tuple[tuple[int, int, tuple[int, ...]], ...]
    """per process and device: what all lines held at the end of each step"""
    total_matched: int

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


def growth(
    trace: Trace,
    own: tuple[str, ...] | None = None,
    steps_by: str | None = None,
    limit: int | None = None,
) -> GrowthResult:
    """Compare what is alive at the ends of the steps.

    Raises NotEnoughDataError without a history of the allocator, or without at least LEAST_STEPS steps.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    devices = device_memories(trace, own)
    if not len(trace.operations):
        raise NotEnoughDataError(
            f"{trace.path} has no GPU operation, so its steps are not known: growth from step to step needs "
            "`profiling-lab record --memory`"
        )
    steps = step_windows(trace, steps_by)
    rows: list[GrowthRow] = []
    held = []
    most = 0
    for each in devices:
        ends = ends_of_steps(each, steps)
        most = max(most, len(ends))
        if len(ends) >= LEAST_STEPS:
            events = [each.event_at(end) for end in ends.tolist()]
            rows += growth_rows(each, ends)
            held.append((each.pid, each.device, tuple(each.replayed.allocated_at(event) for event in events)))
    if not held:
        raise NotEnoughDataError(
            f"{trace.path} has {most} steps in which memory was recorded; growth needs {LEAST_STEPS} or more "
            f"(steps: {steps.how})"
        )
    rows.sort(key=lambda row: (-row.grown_bytes, row.pid, row.device, row.key))
    return GrowthResult(tuple(rows[:limit]), most, steps.how, tuple(held), len(rows))


def ends_of_steps(each: DeviceMemory, steps: StepWindows) -> I64:
    """Times on the host at which steps of a process ended, while its memory was recorded."""
    times = each.history.time_ns
    if steps.sign == "window" or not len(times):
        return np.empty(0, np.int64)
    mine = steps.process == each.history.process
    ends = np.sort(steps.host_end_ns[mine])
    # What is freed in the last moments of a program says nothing about its steps.
    return np.asarray(ends[(ends >= times[0]) & (ends <= times[-1])])


def growth_rows(each: DeviceMemory, ends: I64) -> list[GrowthRow]:
    """What each line held at these times, the most grown first."""
    events = [each.event_at(end) for end in ends.tolist()]
    made = each.allocations
    sums: dict[str, I64] = {}
    places: dict[str, Place] = {}
    for number, event in enumerate(events):
        for row in made.alive_at(event).tolist():
            place = each.place(row)
            places.setdefault(place.key, place)
            sums.setdefault(place.key, np.zeros(len(events), dtype=np.int64))[number] += made.size[row]
    rows = [_row(each, places[key], held) for key, held in sums.items()]
    return sorted(rows, key=lambda row: (-row.grown_bytes, row.key))


def _row(each: DeviceMemory, place: Place, held: I64) -> GrowthRow:
    changes = np.diff(held)
    return GrowthRow(
        key=" ".join(filter(None, (place.key, f"pid {each.pid}" if each.pid else "", f"GPU {each.device}"))),
        pid=each.pid,
        device=each.device,
        place=place,
        grown_bytes=int(held[-1] - held[0]),
        per_step_bytes=int(np.median(changes)),
        steps_grown=int((changes > 0).sum()),
        first_bytes=int(held[0]),
        last_bytes=int(held[-1]),
    )
