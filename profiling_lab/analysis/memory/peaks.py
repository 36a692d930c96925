# SPDX-License-Identifier: Apache-2.0
"""How full the memory of each GPU was, where the recording noted its allocations."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.memory.replay import replay
from profiling_lab.records import dataclass
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import NO_SEQUENCE, dense
from profiling_lab.trace.memory_history import MemoryHistory


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The most memory that one process held on one device; what it held before the recording is not known."""

    process: int
    """number of the process in the trace"""
    device: int
    peak_bytes: int
    at_ns: int
    total_bytes: int | None
    """what the device has; None where the file does not say"""


def _of_history(history: MemoryHistory) -> MemoryPeak:
    replayed = replay(history)
    above = len(history) and int(replayed.reserved.max()) > replayed.reserved_before
    at = int(replayed.reserved.argmax()) if above else 0
    return MemoryPeak(
        process=history.process,
        device=history.device,
        peak_bytes=replayed.reserved_peak_bytes,
        at_ns=int(history.time_ns[at]) if len(history) else 0,
        total_bytes=history.total_bytes,
    )


def memory_peaks(trace: Trace) -> tuple[MemoryPeak, ...] | None:
    """The peak of each process on each device; None where the trace holds no allocations.

    Of torch's own allocator it is what that held, of the driver's allocations the sum of all changes.
    """
    events = trace.source.memory()
    if events is None:
        return tuple(map(_of_history, trace.source.memory_history())) or None
    process, device, time_ns = events.process, events.device, events.time_ns
    track, _ = dense(process.astype(np.int64) << 32 | (device & 0xFFFFFFFF))
    sizes = {gpu.memory_bytes for gpu in trace.gpus}
    total = sizes.pop() if len(sizes) == 1 else None
    peaks = []
    for number in range(int(track.max(initial=-1)) + 1):
        mine = np.flatnonzero(track == number)
        mine = mine[np.argsort(time_ns[mine], kind="stable")]
        held = np.cumsum(events.change_bytes[mine])
        if events.held_bytes is not None:
            noted = events.held_bytes[mine]
            held = np.where(noted == NO_SEQUENCE, held, noted)
        top = int(held.argmax())
        peaks.append(
            MemoryPeak(
                process=int(process[mine[0]]),
                device=int(device[mine[0]]),
                peak_bytes=int(held[top]),
                at_ns=int(time_ns[mine[top]]),
                total_bytes=total or None,
            )
        )
    return tuple(peaks)
