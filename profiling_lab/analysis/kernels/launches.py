# SPDX-License-Identifier: Apache-2.0
"""The life of a kernel in three phases: the call that launches it, the queue, and the GPU.

Defined as in `cuda_kern_exec_sum` of nsys: queued is from the end of the call to the start of the kernel, and
a kernel that starts before its call returns was not queued. The phases may overlap, so the total is from the
start of the call to the end of the call or of the kernel, whichever comes later. A queue is not bad in
itself: it says that the GPU had other work; launches that are never queued may mean an idle GPU.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.coverage import Coverage
from profiling_lab.analysis.places import Place, covered, operation_places
from profiling_lab.analysis.stats import Stats, StatsByKey, merged_names, possible
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, OperationKind, combined
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Phases:
    """Times of the launches of one row, ns."""

    total: Stats
    call: Stats
    queue: Stats
    """of those that were queued; `queue.count` says how many"""
    kernel: Stats


@dataclass(frozen=True, slots=True)
class PhasesByKey:
    """Phases of the kernels whose calls were recorded, by key."""

    total: StatsByKey
    call: StatsByKey
    queue: StatsByKey
    kernel: StatsByKey

    @classmethod
    def of(cls, trace: Trace, key: npt.NDArray[np.integer], keys: int) -> PhasesByKey:
        """`key` is per operation, negative for those without one."""
        operations, calls, call = trace.operations, trace.calls, trace.attribution.call
        sane = np.append(possible(calls.start_ns, calls.end_ns), False)
        rows = np.flatnonzero((key >= 0) & sane[call])
        of = call[rows]
        call_start, call_end = calls.start_ns[of], calls.end_ns[of]
        start_ns, end_ns = operations.start_ns[rows], operations.end_ns[rows]
        queue_ns = start_ns - call_end
        queued = np.where(queue_ns > 0, key[rows], -1)

        def stats(value: I64, of_key: npt.NDArray[np.integer] = key[rows]) -> StatsByKey:
            return StatsByKey.of(of_key, value, keys)

        return cls(
            total=stats(np.maximum(call_end, end_ns) - call_start),
            call=stats(call_end - call_start),
            queue=stats(queue_ns, queued),
            kernel=stats(end_ns - start_ns),
        )

    def __getitem__(self, key: int) -> Phases:
        return Phases(self.total[key], self.call[key], self.queue[key], self.kernel[key])


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One kernel launched by one function on one thread, on one device."""

    pid: int
    tid: int
    device: int
    api: str
    kernel: str
    short_kernel: str
    phases: Phases
    places: tuple[Place, ...]

    @property
    def key(self) -> str:
        return f"{self.pid}/{self.tid}/{self.device}/{self.api}/{self.kernel}"


@dataclass(frozen=True, slots=True)
class LaunchesResult:
    """Rows by total time, the longest first."""

    rows: tuple[LaunchRow, ...]
    coverage: Coverage
    launches: int
    queued: int
    unrecorded: int
    """kernels whose call is not in the recording: their call and queue are unknown"""
    total_matched: int

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


def launches(trace: Trace, own: tuple[str, ...] | None = None, limit: int | None = None) -> LaunchesResult:
    """Time in the call, in the queue and on the GPU, for each (thread, device, call, kernel).

    own: see Ownership. limit: the most rows. Raises NotEnoughDataError without any kernel's call.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    own_row, coverage = covered(trace, own)
    operations, calls = trace.operations, trace.calls
    kernels = operations.kind == OperationKind.KERNEL
    call = trace.attribution.call if len(operations) else np.empty(0, dtype=np.int32)
    rows = np.flatnonzero(kernels & np.append(possible(calls.start_ns, calls.end_ns), False)[call])
    if not len(rows):
        raise NotEnoughDataError(f"{trace.path} holds no kernel together with the call that launched it")
    api, apis = merged_names(calls.name, calls.names)
    kernel, names = merged_names(operations.name, operations.names)
    of = call[rows]
    number, distinct = combined(calls.thread[of], operations.device[rows], api[of], kernel[rows])
    key = np.full(len(operations), -1, dtype=np.int32)
    key[rows] = number
    phases = PhasesByKey.of(trace, key, len(distinct))
    labels = [(apis[a], names[k]) for _, _, a, k in distinct]
    ranked = phases.total.ranked([f"{a}/{k}/{i:09}" for i, (a, k) in enumerate(labels)])
    shown = ranked[:limit]
    places = operation_places(trace, own_row).by_key(key, operations.duration_ns, shown)
    short = dict(zip(operations.names, operations.short_names, strict=True))
    process = np.zeros(len(trace.tids), dtype=np.int32)
    process[calls.thread] = calls.process
    out = []
    for i in shown:
        thread, device, _, _ = distinct[i]
        name, kernel_name = labels[i]
        out.append(
            LaunchRow(
                pid=trace.pids[process[thread]],
                tid=trace.tids[thread],
                device=device,
                api=name,
                kernel=kernel_name,
                short_kernel=short[kernel_name],
                phases=phases[i],
                places=places[i],
            )
        )
    return LaunchesResult(
        rows=tuple(out),
        coverage=coverage,
        launches=len(rows),
        queued=int(phases.queue.count.sum()),
        unrecorded=int(kernels.sum()) - len(rows),
        total_matched=len(ranked),
    )
