# SPDX-License-Identifier: Apache-2.0
"""Why a GPU can be idle, as far as a trace can show."""

from __future__ import annotations

from enum import IntEnum

from profiling_lab.analysis.host.activity import ActivityKind

LATENCY_NS = 10_000
"""the longest pause of the GPU, between operations or before the one just launched, that needs no cause"""


class Cause(IntEnum):
    """Why the GPU was idle. The first are what the host's thread was doing (host.activity.ActivityKind)."""

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
    AFTER_WAIT = 14
    LATENCY = 15
    BETWEEN = 16
    EVENT_WAIT = 17
    LATE_START = 18
    NOT_RECORDED = 19
    LOADING_WORKERS = 20


CAUSES = {
    Cause.HOST_CODE: "host code",
    Cause.OFF_CPU: "host thread off the CPU",
    Cause.SYSTEM_CALL: "host blocked in the system",
    Cause.GARBAGE_COLLECTION: "garbage collection",
    Cause.GIL_WAIT: "waiting for the GIL",
    Cause.DATA_LOADING: "data loading",
    Cause.LOADING_WORKERS: "waiting for the workers of a DataLoader",
    Cause.CUDA_CALL: "inside a CUDA call",
    Cause.WAIT: "a wait that returns",
    Cause.ALLOCATOR: "allocation",
    Cause.START_UP: "CUDA starting up",
    Cause.CODE_LOADING: "loading GPU code",
    Cause.QUEUE_FULL: "launch queue full",
    Cause.COMPILATION: "torch.compile compiles",
    Cause.PROFILER: "the profiler itself",
    Cause.AFTER_WAIT: "host code after a wait",
    Cause.LATENCY: "launch latency",
    Cause.BETWEEN: "pause between queued operations",
    Cause.EVENT_WAIT: "waiting for an event",
    Cause.LATE_START: "unknown: launched, but started late",
    Cause.NOT_RECORDED: "unknown: launch not recorded",
}
UNKNOWN = (CAUSES[Cause.LATE_START], CAUSES[Cause.NOT_RECORDED])
