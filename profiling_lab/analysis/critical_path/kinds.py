# SPDX-License-Identifier: Apache-2.0
"""What the time on a critical path was spent with."""

from __future__ import annotations

from enum import IntEnum

from profiling_lab.analysis.gaps.causes import CAUSES, Cause
from profiling_lab.analysis.host.activity import ActivityKind


class Kind(IntEnum):
    """Of a part of the path. The first are what the host's thread was doing (host.activity.ActivityKind)."""

    HOST_CODE = ActivityKind.RANGE
    OFF_CPU = ActivityKind.OFF_CPU
    SYSTEM_CALL = ActivityKind.SYSTEM_CALL
    GARBAGE_COLLECTION = ActivityKind.GARBAGE_COLLECTION
    GIL_WAIT = ActivityKind.GIL_WAIT
    DATA_LOADING = ActivityKind.DATA_LOADING
    CUDA_CALL = ActivityKind.CUDA_CALL
    WAIT = ActivityKind.WAIT
    ALLOCATOR = ActivityKind.ALLOCATOR
    START_UP = ActivityKind.START_UP
    CODE_LOADING = ActivityKind.CODE_LOADING
    QUEUE_FULL = ActivityKind.QUEUE_FULL
    COMPILATION = ActivityKind.COMPILATION
    PROFILER = ActivityKind.PROFILER
    LAUNCH = 14
    KERNEL = 15
    COLLECTIVE = 16
    COPY = 17
    SET = 18
    GRAPH = 19
    LATENCY = 20
    BETWEEN = 21
    EVENT_WAIT = 22
    OTHER_STREAM = 23
    UNKNOWN = 24
    COPY_CALL = 25


KINDS: dict[Kind, str] = {
    **{Kind(cause): CAUSES[cause] for cause in Cause if cause <= Cause.PROFILER},
    Kind.CUDA_CALL: "CUDA call",
    Kind.LAUNCH: "launch call",
    Kind.COPY_CALL: "copy call",
    Kind.KERNEL: "kernel",
    Kind.COLLECTIVE: "collective",
    Kind.COPY: "copy",
    Kind.SET: "memset",
    Kind.GRAPH: "CUDA graph",
    Kind.LATENCY: CAUSES[Cause.LATENCY],
    Kind.BETWEEN: CAUSES[Cause.BETWEEN],
    Kind.EVENT_WAIT: CAUSES[Cause.EVENT_WAIT],
    Kind.OTHER_STREAM: "behind another stream",
    Kind.UNKNOWN: "unknown",
}

HOST_CODE = (Kind.HOST_CODE, Kind.OFF_CPU, Kind.SYSTEM_CALL)
"""what the host does of its own"""

CUDA_CALLS = (Kind.LAUNCH, Kind.COPY_CALL, Kind.CUDA_CALL)
"""calls that the GPU does not hold"""

GROUPS = ("host", "GPU", "collectives", "waits", "unknown")
HOST, GPU, COLLECTIVES, WAITS, UNKNOWN = range(len(GROUPS))
_GROUP_OF = {
    **dict.fromkeys((Kind.KERNEL, Kind.COPY, Kind.SET, Kind.GRAPH), GPU),
    Kind.COLLECTIVE: COLLECTIVES,
    **dict.fromkeys(
        (Kind.WAIT, Kind.QUEUE_FULL, Kind.LATENCY, Kind.BETWEEN, Kind.EVENT_WAIT, Kind.OTHER_STREAM), WAITS
    ),
    Kind.UNKNOWN: UNKNOWN,
}
GROUP_OF_KIND = tuple(_GROUP_OF.get(kind, HOST) for kind in Kind)
"""the group of each kind: work of the host, of the GPU, communication, what passes from one to the other"""
