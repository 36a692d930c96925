# SPDX-License-Identifier: Apache-2.0
"""How full the memory of each GPU was, where the recording noted its allocations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiling_lab.analysis.info import gpus
from profiling_lab.trace.columns import I32, I64, NO_SEQUENCE, MemoryKind, dense
from profiling_lab.trace.kineto.source import ChromeSource
from profiling_lab.trace.nsys.source import SqliteSource
from profiling_lab.trace.process_ids import process_part
from profiling_lab.trace.trace import Trace

_TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_ON_THE_GPU = (MemoryKind.DEVICE, MemoryKind.MANAGED, MemoryKind.DEVICE_STATIC, MemoryKind.MANAGED_STATIC)


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


def memory_peaks(trace: Trace) -> tuple[MemoryPeak, ...] | None:
    """The peak of each process on each device; None where the trace holds no allocations."""
    if isinstance(trace.source, ChromeSource):
        return _noted_by_torch(trace, trace.source)
    if not isinstance(trace.source, SqliteSource) or not (table := trace.file.newest(_TABLE)):
        return None
    wanted: dict[str, int | str] = {
        "start": 0,
        "globalPid": 0,
        "deviceId": 0,
        "bytes": 0,
        "memKind": int(MemoryKind.DEVICE),
        "memoryOperationType": 0,
    }
    rows = trace.file.select(table, wanted)
    on_the_gpu = np.isin(rows["memKind"], _ON_THE_GPU)
    rows = {name: column[on_the_gpu] for name, column in rows.items()}
    process = trace.source.processes.number(process_part(rows["globalPid"]))
    change = np.where(rows["memoryOperationType"] == 1, -rows["bytes"], rows["bytes"])
    return _peaks(trace, process, rows["deviceId"], rows["start"], change, None)


def _noted_by_torch(trace: Trace, source: ChromeSource) -> tuple[MemoryPeak, ...] | None:
    """What torch's allocator holds of each GPU, as profile_memory notes it at each of its own allocations."""
    process, rows = source.memory()
    if not len(process):
        return None
    change = np.where(rows["bytes"] == NO_SEQUENCE, 0, rows["bytes"])
    return _peaks(trace, process, rows["device"], rows["time_ns"], change, rows["reserved"])


def _peaks(
    trace: Trace, process: I32, device: I64, time_ns: I64, change: I64, held_bytes: I64 | None
) -> tuple[MemoryPeak, ...]:
    """The moment with most held, by process and device: `held_bytes` where it is known, else all changes."""
    track, _ = dense(process.astype(np.int64) << 32 | (device & 0xFFFFFFFF))
    sizes = {gpu.memory_bytes for gpu in gpus(trace)}
    total = sizes.pop() if len(sizes) == 1 else None
    peaks = []
    for number in range(int(track.max(initial=-1)) + 1):
        mine = np.flatnonzero(track == number)
        mine = mine[np.argsort(time_ns[mine], kind="stable")]
        held = np.cumsum(change[mine])
        if held_bytes is not None:
            noted = held_bytes[mine]
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
