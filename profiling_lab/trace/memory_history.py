# SPDX-License-Identifier: Apache-2.0
"""What torch's caching allocator did on one GPU, and what it held at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, U8

MOST_BYTES = 1 << 50
"""no GPU has more: a larger number is damage, and sums of such numbers overflow"""


def sane_sizes(values: I64) -> I64:
    """Sizes in bytes, with those that damage made within what a GPU can have."""
    return np.clip(values, 0, MOST_BYTES)


class Action(IntEnum):
    """What the allocator did. The names are those of torch's snapshots, in lower case."""

    ALLOC = 0
    FREE_REQUESTED = 1
    """the tensor is gone; the block is counted as free"""
    FREE_COMPLETED = 2
    """the block can be used again; later than the request if another stream still used it"""
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8


ACTIONS = {action.name.lower(): action for action in Action}


class TensorKind(IntEnum):
    """What the program uses a tensor for, where the recorder could see it."""

    PARAMETER = 0
    GRADIENT = 1
    OPTIMIZER_STATE = 2
    BUFFER = 3


@dataclass(frozen=True, slots=True)
class Segments:
    """Memory that the allocator has from the driver."""

    address: I64
    size: I64
    is_expandable: npt.NDArray[np.bool_]

    @classmethod
    def none(cls) -> Segments:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, dtype=bool))


@dataclass(frozen=True, slots=True)
class UsedBlocks:
    """Blocks in use. A block may be larger than what was requested."""

    address: I64
    size: I64
    requested: I64
    is_allocated: npt.NDArray[np.bool_]
    """False: the tensor is gone, but a stream may still use the block"""

    @classmethod
    def none(cls) -> UsedBlocks:
        numbers = np.empty(0, np.int64)
        return cls(numbers, numbers, numbers, np.empty(0, dtype=bool))


@dataclass(frozen=True, slots=True)
class KnownTensors:
    """Addresses of tensors of a known kind, as the recorder saw them at some times, such as after each step.

    A sample has a set of tensors; samples with the same addresses share one.
    """

    sample_ns: I64
    sample_set: I32
    set: I32
    """per tensor, as `address` and `kind`"""
    address: I64
    kind: U8
    """TensorKind"""

    @classmethod
    def none(cls) -> KnownTensors:
        numbers, sets = np.empty(0, np.int64), np.empty(0, np.int32)
        return cls(numbers, sets, sets, numbers, np.empty(0, np.uint8))


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """PYTORCH_CUDA_ALLOC_CONF, as far as it decides how large a block is."""

    max_split_bytes: int = (1 << 63) - 1
    roundup_divisions: Mapping[int, int] = field(default_factory=dict)
    """by size in MiB, a power of two; without entries sizes are rounded up to 512 bytes"""

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> AllocatorSettings:
        """From the allocator_settings of a snapshot; what is missing has torch's default."""
        split = known.get("max_split_size")
        rounding = known.get("roundup_power2_divisions")
        divisions = {}
        for size, parts in rounding.items() if isinstance(rounding, Mapping) else ():
            if str(size).isdecimal() and isinstance(parts, int) and parts > 1:
                divisions[int(size)] = parts
        largest = (1 << 63) - 1
        return cls(split if isinstance(split, int) and 0 < split < largest else largest, divisions)


@dataclass(frozen=True, slots=True)
class TorchCounts:
    """torch.cuda.memory_stats when the history was read: bytes, since the program reset its peaks."""

    allocated_peak: int
    reserved_peak: int
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Totals:
    """What torch.profiler writes with each event. It has no segments, and sizes are those of blocks."""

    allocated: I64
    """after the event"""
    reserved: I64
    operator: I32
    """row of `names`, -1 outside of operators"""
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryHistory:
    """One row per event of the caching allocator on one device of one process, in order."""

    process: int
    """number of the process in the trace"""
    device: int
    action: U8
    """Action"""
    address: I64
    """for OOM the free memory of the device"""
    size: I64
    """requested bytes of a block; bytes of a segment"""
    time_ns: I64
    """to the microsecond, on the clock of the trace"""
    stack: I32
    """row of the trace's stacks, 0 without Python frames: the autograd engine's own threads have none"""
    segments: Segments
    """at the end, as `blocks`"""
    blocks: UsedBlocks
    settings: AllocatorSettings = AllocatorSettings()
    tensors: KnownTensors = field(default_factory=KnownTensors.none)
    totals: Totals | None = None
    most_events: int = 0
    """the recorder keeps no more events than this, the last ones; 0: not known"""
    counts: TorchCounts | None = None
    total_bytes: int | None = None
    """memory of the device"""

    def __len__(self) -> int:
        return len(self.action)

    @property
    def is_full(self) -> bool:
        """Whether older events may have been dropped."""
        return 0 < self.most_events <= len(self)
