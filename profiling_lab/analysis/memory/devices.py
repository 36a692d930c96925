# SPDX-License-Identifier: Apache-2.0
"""The memory of each GPU of each process in a trace, replayed once for all questions."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from profiling_lab.analysis.memory.kinds import kinds
from profiling_lab.analysis.memory.owners import Owners, owners
from profiling_lab.analysis.memory.replay import BEFORE, Allocations, Replay, replay
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I32, U8
from profiling_lab.trace.memory_history import MemoryHistory
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import LINE_PHASES
from profiling_lab.trace.platform import in_words_of
from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.trace import Trace

OLDER = "allocated before the recording of memory began"
NO_FRAMES = (
    "no Python frames (a thread of the autograd engine, or a library's), and no launch in backward follows"
)
ONLY_LIBRARIES = "only library frames in the stack"
HOW = (
    "`profiling-lab record --memory`, a snapshot of torch.cuda.memory._dump_snapshot, or torch.profiler with "
    "profile_memory=True"
)


class DeviceMemory:
    """The memory of one device as one process used it."""

    def __init__(self, trace: Trace, history: MemoryHistory, own: tuple[str, ...]) -> None:
        self.trace = trace
        self.history = history
        self._own = own

    @property
    def device(self) -> int:
        return self.history.device

    @property
    def pid(self) -> int:
        """0 if the file does not say."""
        pids = self.trace.pids
        return pids[self.history.process] if self.history.process < len(pids) else 0

    @cached_property
    def replayed(self) -> Replay:
        return replay(self.history)

    @property
    def allocations(self) -> Allocations:
        return self.replayed.allocations

    @cached_property
    def owners(self) -> Owners:
        return owners(self.trace, self.replayed)

    @cached_property
    def kinds(self) -> U8:
        return kinds(self.trace, self.replayed, self.owners)

    @cached_property
    def own_rows(self) -> I32:
        """Per stack the row of its innermost own frame, 0 without one."""
        return self.trace.stacks.own_rows(Ownership(self._own))

    def place_of_stack(self, stack: int, phase: str = "") -> Place:
        stacks, own = self.trace.stacks, int(self.own_rows[stack])
        if own:
            return Place(stacks.frames[stacks.frame[own]], phase, "")
        if not stack:
            return Place(None, phase, NO_FRAMES)
        return Place(None, phase, f"{ONLY_LIBRARIES}: {stacks.frames[stacks.frame[stack]]}")

    def event_at(self, time_ns: int) -> int:
        """The last event up to a time."""
        return int(np.searchsorted(self.history.time_ns, time_ns, "right")) - 1

    def time_of(self, event: int) -> int:
        """Of an event; the first time for what was before."""
        times = self.history.time_ns
        return int(times[max(event, 0)]) if len(times) else 0

    def place(self, row: int) -> Place:
        """Who made an allocation."""
        phase = LINE_PHASES[int(self.owners.phase[row])]
        if self.allocations.begin[row] == BEFORE:
            return Place(None, phase, OLDER)
        place = self.place_of_stack(int(self.owners.stack[row]), phase)
        if place.frame is None and self.history.totals is not None:
            return replace(place, reason=self._in_operator(row))
        return replace(place, is_linked=True) if self.owners.is_linked[row] else place

    def _in_operator(self, row: int) -> str:
        totals = self.history.totals
        number = -1 if totals is None else int(totals.operator[self.allocations.begin[row]])
        return f"in {totals.names[number]}" if totals is not None and number >= 0 else "outside of operators"


@dataclass(frozen=True, slots=True)
class Place:
    """The line that made allocations; or why it is unknown."""

    frame: Frame | None
    phase: str
    """one of LINE_PHASES"""
    reason: str
    is_linked: bool = False
    """of backward: the line of the forward operator, from the launch that followed"""

    @property
    def key(self) -> str:
        """What distinguishes lines."""
        return f"{self.frame.file}:{self.frame.line}" if self.frame else self.reason


def device_memories(trace: Trace, own: tuple[str, ...] | None = None) -> tuple[DeviceMemory, ...]:
    """One per process and device with a history. Raises NotEnoughDataError if the trace has none."""
    found = trace.source.memory_history()
    if not found:
        why = in_words_of(trace, f"no history of torch's allocator: it needs {HOW}")
        raise NotEnoughDataError(f"{trace.path} has {why}")
    return tuple(DeviceMemory(trace.whole, history, own or ()) for history in found)
