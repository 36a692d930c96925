# SPDX-License-Identifier: Apache-2.0
"""The kinds of CUDA API calls. The table is csrc/trace/cuda_calls.h, which the recorder uses too."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.trace.columns import U8, Calls


class CudaCall(IntEnum):
    """The kinds of calls, with the numbers of the table."""

    OTHER = 0
    LAUNCH = 1
    GRAPH_LAUNCH = 2
    COPY = 3
    BLOCKING_COPY = 4
    """the host waits for it, unless it is small and the driver stages it"""
    PREFETCH = 5
    SET = 6
    STREAM_SYNC = 7
    EVENT_SYNC = 8
    DEVICE_SYNC = 9
    STREAM_WAIT_EVENT = 10
    """a stream waits, the host does not"""
    POLL = 11
    DEVICE_MEMORY = 12
    POOL_MEMORY = 13
    """from a memory pool, stream-ordered: cheap"""
    PINNED_MEMORY = 14
    REGISTER_MEMORY = 15
    UNMAP_MEMORY = 16
    LOAD_CODE = 17


COPIES = (CudaCall.COPY, CudaCall.BLOCKING_COPY)
SYNCS = (CudaCall.STREAM_SYNC, CudaCall.EVENT_SYNC, CudaCall.DEVICE_SYNC)
"""calls that only block the host until the GPU has reached a point"""


def cuda_calls(calls: Calls) -> U8:
    """The CudaCall per call."""
    return np.array([_analysis.cuda_call(name) for name in calls.names] or [0], dtype=np.uint8)[calls.name]


def are_any(calls: Calls, kinds: Collection[CudaCall]) -> npt.NDArray[np.bool_]:
    """Per call, whether it is of one of these kinds."""
    return np.isin(cuda_calls(calls), list(kinds))
