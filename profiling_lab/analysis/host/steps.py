# SPDX-License-Identifier: Apache-2.0
"""The wall time of steps in eight parts: what the GPU did, and where it did nothing, what the host did.

It is the breakdown of the overview page that TensorBoard's profiler plugin had until 2026.
"""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.host.activity import ActivityKind, host_activity
from profiling_lab.trace.columns import I32, I64, full, unique
from profiling_lab.trace.operation_classes import OperationClass, device_tracks
from profiling_lab.trace.step_windows import StepWindows
from profiling_lab.trace.trace import Trace

CATEGORIES = (
    "compute",
    "communication",
    "memcpy",
    "memset",
    "runtime",
    "data loading",
    "in ranges",
    "other",
)
"""In order of priority: where two overlap, the earlier counts. The first four are the GPU's."""
_RUNTIME, _DATA_LOADING, _IN_RANGES, _OTHER = range(4, 8)

_OF_THE_GPU = {
    OperationClass.COMPUTE: 0,
    OperationClass.COMMUNICATION: 1,
    OperationClass.HOST_TO_DEVICE: 2,
    OperationClass.DEVICE_TO_HOST: 2,
    OperationClass.OTHER_COPY: 2,
    OperationClass.SET: 3,
}
_OF_THE_HOST = {
    ActivityKind.RANGE: _IN_RANGES,
    ActivityKind.DATA_LOADING: _DATA_LOADING,
    ActivityKind.CUDA_CALL: _RUNTIME,
    ActivityKind.WAIT: _RUNTIME,
    ActivityKind.ALLOCATOR: _RUNTIME,
    ActivityKind.START_UP: _RUNTIME,
    ActivityKind.CODE_LOADING: _RUNTIME,
}
_UNSET = -1


def category_times(trace: Trace, steps: StepWindows, start_ns: I64, end_ns: I64, track: I32) -> I64:
    """[windows, CATEGORIES]: time of windows of devices (as device_tracks numbers them); rows sum to them.

    What the host did is what any thread of the device's process did: `runtime` is inside of a CUDA call,
    `in ranges` inside of an operator of torch.profiler or an NVTX range. Ranges that hold a whole step, such
    as its own, say nothing about it and do not count.
    """
    operations = trace.operations
    device, devices = device_tracks(operations)
    of_class = np.array([_OF_THE_GPU[kind] for kind in OperationClass], dtype=np.int32)
    parts = [(operations.start_ns, operations.end_ns, device, of_class[trace.classes])]

    # Steps on the host's clock may begin before the first operation and end after the last. A nanosecond more
    # on either side keeps ranges around all of them apart from those that are cut there.
    span = (
        int(min(start_ns.min(), steps.host_start_ns.min())) - 1,
        int(max(end_ns.max(), steps.host_end_ns.max())) + 1,
    )
    host = host_activity(trace, span)
    of_doing = np.array([_OF_THE_HOST.get(doing, _UNSET) for doing in ActivityKind], dtype=np.int32)
    category = of_doing[host.doing]
    around = _around_a_step(host.start_ns, host.end_ns, host.process, steps)
    category[around & (category == _IN_RANGES)] = _UNSET
    for number, (process, _) in enumerate(devices):
        rows = np.flatnonzero((category != _UNSET) & (host.process == process))
        parts.append(
            (host.start_ns[rows], host.end_ns[rows], full(len(rows), number, np.int32), category[rows])
        )

    starts, ends, tracks, kinds = (np.concatenate([part[i] for part in parts]) for i in range(4))
    sets = _analysis.set_time_ns(starts, ends, tracks, kinds, start_ns, end_ns, track, _OTHER)
    # The lowest bit of a set is its category of the highest priority; the empty set is the rest.
    first = [_OTHER] + [(number & -number).bit_length() - 1 for number in range(1, sets.shape[1])]
    out = np.zeros((len(CATEGORIES), len(start_ns)), dtype=np.int64)
    np.add.at(out, np.array(first), sets.T)
    return np.ascontiguousarray(out.T)


def _around_a_step(start_ns: I64, end_ns: I64, process: I32, steps: StepWindows) -> np.ndarray:
    """Whether an interval holds a whole step of its process, on the host's clock."""
    out = np.zeros(len(start_ns), dtype=bool)
    for number in unique(steps.process).tolist():
        mine, rows = steps.process == number, np.flatnonzero(process == number)
        starts, ends = steps.host_start_ns[mine], steps.host_end_ns[mine]
        at = np.searchsorted(starts, start_ns[rows], side="left")  # the first step that begins inside
        out[rows] = np.append(ends, np.iinfo(np.int64).max)[at] <= end_ns[rows]
    return out
