# SPDX-License-Identifier: Apache-2.0
"""Classes of GPU operations: compute, communication, and copies by direction."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np

from profiling_lab.trace.columns import I32, OperationKind, Operations, dense
from profiling_lab.trace.kernel_names import base_name

# Collectives by kernel name. NCCL's have a common prefix; those over symmetric memory (torch, vLLM,
# TensorRT-LLM, NVSHMEM) contain the name of the collective.
_LIBRARY = re.compile(r"(?i)^(void )?(nccl|nvshmem)|ncclDevKernel|ncclKernel|deep_ep::")
_COLLECTIVE = re.compile(
    r"(?i)multimem_|cross_device_reduce|all_?reduce|reduce_?scatter|all_?gather|all_?to_?all(?![a-z])"
)
# These names are for reductions within one block.
_OF_A_BLOCK = re.compile(r"(?i)(warp|block|cta|lane|thread)_?all_?reduce")


class OperationClass(IntEnum):
    """The classes of `overlap`; a graph recorded as a whole counts as compute."""

    COMPUTE = 0
    COMMUNICATION = 1
    HOST_TO_DEVICE = 2
    DEVICE_TO_HOST = 3
    OTHER_COPY = 4
    SET = 5


CLASS_NAMES = ("compute", "communication", "copy HtoD", "copy DtoH", "other copy", "memset")
COPIES = (
    OperationClass.HOST_TO_DEVICE,
    OperationClass.DEVICE_TO_HOST,
    OperationClass.OTHER_COPY,
    OperationClass.SET,
)


# The names of kernels (ncclDevKernel_AllReduce_Sum_bf16_RING_LL, multimem_all_reduce_kernel) and those of
# torch (_allgather_base); the first match counts, because most contain "reduce".
_COLLECTIVES = (
    ("AllReduce", r"(?i)all_?reduce|cross_device_reduce"),
    ("ReduceScatter", r"(?i)reduce_?scatter"),
    ("AllGather", r"(?i)all_?gather"),
    ("AllToAll", r"(?i)all_?to_?all"),
    ("Barrier", r"(?i)barrier"),
    ("SendRecv", r"(?i)send|recv"),
    ("Broadcast", r"(?i)broadcast"),
    ("Scatter", r"(?i)scatter"),
    ("Gather", r"(?i)gather"),
    ("Reduce", r"(?i)reduce"),
)


def operation_classes(operations: Operations) -> I32:
    """The OperationClass per operation, from its kind and name."""
    names = zip(operations.names, operations.short_names, strict=True)
    communicates = np.array([_communicates(*both) for both in names] or [False], dtype=bool)
    direction = np.array([int(_direction(name)) for name in operations.names] or [0], dtype=np.int32)
    kernel = np.where(
        communicates[operations.name], OperationClass.COMMUNICATION, OperationClass.COMPUTE
    ).astype(np.int32)
    out = np.where(operations.kind == OperationKind.COPY, direction[operations.name], kernel)
    out = np.where(operations.kind == OperationKind.GRAPH, OperationClass.COMPUTE, out)
    return np.where(operations.kind == OperationKind.SET, OperationClass.SET, out).astype(np.int32)


def _communicates(name: str, short_name: str) -> bool:
    # Template arguments describe parts of a kernel, not its purpose.
    base = base_name(short_name)
    says_so = bool(_COLLECTIVE.search(base)) and not _OF_A_BLOCK.search(base)
    return says_so or bool(_LIBRARY.search(name))


def _direction(name: str) -> OperationClass:
    if name.endswith("HtoD"):
        return OperationClass.HOST_TO_DEVICE
    return OperationClass.DEVICE_TO_HOST if name.endswith("DtoH") else OperationClass.OTHER_COPY


def device_tracks(operations: Operations) -> tuple[I32, tuple[tuple[int, int], ...]]:
    """A dense number per device of a process, and the (process, device) of each number."""
    # The lower half is the device number, which may be negative in a damaged file.
    pair = operations.process.astype(np.int64) << 32 | (operations.device.astype(np.int64) & 0xFFFFFFFF)
    track, distinct = dense(pair)
    devices = distinct.astype(np.int64).astype(np.int32)
    return track, tuple(zip((distinct >> 32).tolist(), devices.tolist(), strict=True))


def collective_kind(name: str, otherwise: str | None = None) -> str:
    """`AllReduce` and so on; `otherwise`, or the name itself, if no kind is recognised."""
    found = next((kind for kind, pattern in _COLLECTIVES if re.search(pattern, name)), None)
    return found or (name if otherwise is None else otherwise)
