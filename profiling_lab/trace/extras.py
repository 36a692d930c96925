# SPDX-License-Identifier: Apache-2.0
"""What only some analyses ask for and only some files hold: the same records whatever the format.

None stands for what a file does not say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from profiling_lab.trace.columns import I32, I64
from profiling_lab.trace.stacks import Frame

FARTHEST_BYTES = 1 << 50
"""a message of a collective is smaller: a larger size is damage"""
GIL_WAIT = re.compile(r"(?i)wait\w* (for |on )?(the )?GIL\b")
"""names of ranges in which a thread waits for Python's lock"""


@dataclass(frozen=True, slots=True, order=True)
class LaunchShape:
    """One way to launch a kernel."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int | None
    """per thread"""
    shared_bytes: int | None
    """per block, static and dynamic"""

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """per block"""
        return self.block[0] * self.block[1] * self.block[2]

    def __str__(self) -> str:
        """`<<<132x1x1, 256x1x1>>>`"""
        return f"<<<{'x'.join(map(str, self.grid))}, {'x'.join(map(str, self.block))}>>>"


@dataclass(frozen=True, slots=True)
class LaunchShapes:
    """A number per operation, -1 for what is no kernel or has none."""

    number: I32
    shapes: tuple[LaunchShape, ...]


@dataclass(frozen=True, slots=True)
class InputShapes:
    """A row of `texts` per range; '' where it notes none."""

    number: I32
    texts: tuple[str, ...]
    """`[[64, 512], [512, 512]]`"""


class Style(IntEnum):
    """Of a range. What was pushed on a thread nests there; what was started may end anywhere."""

    PUSH_POP = 0
    START_END = 1
    ACROSS_THREADS = 2
    """started on one thread and ended on another"""
    OPERATOR = 3
    """an operator or annotation of torch.profiler"""


@dataclass(frozen=True, slots=True)
class Stream:
    """'' and None stand for what is not known."""

    kind: str
    """'default', 'non-blocking' (does not wait for the default stream), 'null' (the default stream itself)"""
    priority: int | None
    """lower is sooner, 0 the usual one"""


@dataclass(frozen=True, slots=True)
class Device:
    """How much of everything one GPU has. SM: streaming multiprocessor."""

    name: str
    compute: int | None
    """compute capability, major number"""
    multiprocessors: int | None
    memory_bytes_per_s: int | None
    """of device memory, as the driver reports it"""
    warps_per_sm: int | None
    blocks_per_sm: int | None
    registers_per_sm: int | None
    shared_bytes_per_sm: int | None


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """Allocations and releases of GPU memory."""

    process: I32
    device: I64
    time_ns: I64
    change_bytes: I64
    held_bytes: I64 | None
    """what was held afterwards, NO_SEQUENCE where that is not noted; None where it never is"""


@dataclass(frozen=True, slots=True)
class HostSpans:
    """Stretches of threads of the host."""

    start_ns: I64
    end_ns: I64
    process: I32
    thread: I32
    name: I32
    """row of `names`"""
    names: tuple[str, ...]
    stack: I32
    """row of the trace's stacks, 0 where none was taken"""

    @classmethod
    def none(cls) -> HostSpans:
        times, numbers = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        return cls(times, times, numbers, numbers, numbers, (), numbers)


@dataclass(frozen=True, slots=True)
class HostSamples:
    """Where threads of the host were from time to time; in no order."""

    time_ns: I64
    thread: I32
    place: I32
    """row of `places`"""
    places: tuple[str, ...]
    """`train.py:44 load`, or of native code `poll (libc.so.6)`, the library alone where it has no symbols"""
    stack: I32
    """row of `stacks`, -1 for native code"""
    stacks: tuple[tuple[Frame, ...], ...]
    """of Python, the innermost frame first"""

    def __len__(self) -> int:
        return len(self.time_ns)

    @classmethod
    def none(cls) -> HostSamples:
        numbers = np.empty(0, dtype=np.int32)
        return cls(np.empty(0, dtype=np.int64), numbers, numbers, (), numbers, ())


@dataclass(frozen=True, slots=True)
class CollectiveFacts:
    """What a file says of one collective beyond its kernel."""

    kind: str
    """AllReduce and so on, see `collective_kind` (operation_classes)"""
    group: str = ""
    """the process group or communicator, '' where the file names none"""
    members: tuple[int, ...] = ()
    """the ranks of the group, () where the file does not say"""
    size: int = 0
    """ranks in the group, 0 where the file does not say"""
    sequence: int = -1
    size_bytes: int = -1
    """of the part of one rank: what it gives to an all-gather, what it takes from a reduce-scatter"""
