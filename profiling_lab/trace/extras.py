# SPDX-License-Identifier: Apache-2.0
"""Records that only some analyses need and only some files contain, the same for all formats.

None means that the file does not contain the value.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64
from profiling_lab.trace.stacks import Frame

FARTHEST_BYTES = 1 << 50
"""an upper limit of a collective's message size: larger values are damage"""
GIL_WAIT = re.compile(r"(?i)wait\w* (for |on )?(the )?GIL\b")
"""names of ranges in which a thread waits for the GIL"""


@dataclass(frozen=True, slots=True, order=True)
class LaunchShape:
    """The launch configuration of a kernel."""

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
    """A shape number per operation, -1 for operations that are not kernels or have none."""

    number: I32
    shapes: tuple[LaunchShape, ...]


@dataclass(frozen=True, slots=True)
class InputShapes:
    """A row of `texts` per range; '' if it has none."""

    number: I32
    texts: tuple[str, ...]
    """`[[64, 512], [512, 512]]`"""


class Style(IntEnum):
    """The style of a range. Push/pop ranges nest on their thread; start/end ranges may end on any thread."""

    PUSH_POP = 0
    START_END = 1
    ACROSS_THREADS = 2
    """started on one thread and ended on another"""
    OPERATOR = 3
    """an operator or annotation of torch.profiler"""


@dataclass(frozen=True, slots=True)
class Stream:
    """Properties of a stream; '' and None mean unknown."""

    kind: str
    """'default', 'non-blocking' (does not synchronise with the default stream), 'null' (the default
    stream)
    """
    priority: int | None
    """lower numbers have higher priority, 0 is the default"""


@dataclass(frozen=True, slots=True)
class Device:
    """The hardware resources of a GPU."""

    name: str
    compute: int | None
    """compute capability, major number"""
    sm_count: int | None
    memory_bytes_per_s: int | None
    """of device memory, as the driver reports it"""
    warps_per_sm: int | None
    blocks_per_sm: int | None
    registers_per_sm: int | None
    shared_bytes_per_sm: int | None


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """Allocations and frees of GPU memory."""

    process: I32
    device: I64
    time_ns: I64
    change_bytes: I64
    held_bytes: I64 | None
    """the allocated memory afterwards, NO_SEQUENCE if unknown; None if never recorded"""


@dataclass(frozen=True, slots=True)
class WorkRows:
    """What the operators of one step must do, per call: counted from shapes, not measured."""

    start_ns: I64
    end_ns: I64
    process: I32
    thread: I32
    name: I32
    """row of `names`"""
    names: tuple[str, ...]
    flops: I64
    """-1: not counted"""
    read_bytes: I64
    written_bytes: I64
    kind: I32
    """row of `kinds`"""
    kinds: tuple[str, ...]
    """matmul, convolution, elementwise, ..."""
    math: I32
    """row of `maths`"""
    maths: tuple[str, ...]
    """what the FLOPs are done in: bfloat16, tf32, ...; '' none"""
    shapes: I32
    """row of `texts`"""
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class EnergySamples:
    """What the driver said of one GPU, a row per change of its energy counter, in time order.

    UNKNOWN_READING in a column: this GPU or driver did not say it.
    """

    process: int
    device: int
    """CUDA ordinal in the process"""
    time_ns: I64
    """when the counter changed"""
    spread_ns: I64
    """so much earlier or later at most"""
    energy_mj: I64
    power_mw: I64
    """an average over up to a second"""
    instant_power_mw: I64
    power_limit_mw: I64
    sm_clock_mhz: I64
    memory_clock_mhz: I64
    temperature_c: I64
    clock_limits: I64
    """a mask of CLOCK_LIMITS"""

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, slots=True)
class CounterSamples:
    """Sampled hardware counters of one GPU, in time order. A counter that this GPU does not sample is
    missing in `values`."""

    process: int
    device: int
    """CUDA ordinal in the process"""
    start_ns: I64
    end_ns: I64
    values: dict[str, I64]
    """per quantity of COUNTERS: bytes in the sample, or millionths of what the units could do in its time"""

    def __len__(self) -> int:
        return len(self.start_ns)


COUNTERS = {
    "dram_read": "dramReadBytes", "dram_written": "dramWrittenBytes", "sm_active": "smActivePpm",
    "issued": "issuedPpm", "tensor": "tensorPpm", "pcie_read": "pcieReadBytes",
    "pcie_written": "pcieWrittenBytes", "nvlink_received": "nvlinkReceivedBytes",
    "nvlink_sent": "nvlinkSentBytes",
}  # fmt: skip
"""and its column in PYREC_COUNTERS"""
UNKNOWN_READING = -1
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html, without those that are no limit
CLOCK_LIMITS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal, software",
    0x40: "thermal, hardware",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True)
class HostSpans:
    """Intervals of host threads."""

    start_ns: I64
    end_ns: I64
    process: I32
    thread: I32
    name: I32
    """row of `names`"""
    names: tuple[str, ...]
    stack: I32
    """row of the trace's stacks, 0 if none was recorded"""

    @classmethod
    def none(cls) -> HostSpans:
        times, numbers = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        return cls(times, times, numbers, numbers, numbers, (), numbers)


@dataclass(frozen=True, slots=True)
class HostSamples:
    """Samples of host threads, unordered."""

    time_ns: I64
    process: I32
    thread: I32
    place: I32
    """row of `places`"""
    places: tuple[str, ...]
    """`train.py:44 load`, or for native code `poll (libc.so.6)`, or only the library without symbols"""
    stack: I32
    """row of `stacks`, -1 for native code"""
    stacks: tuple[tuple[Frame, ...], ...]
    """Python stacks, the innermost frame first"""

    def __len__(self) -> int:
        return len(self.time_ns)

    @classmethod
    def none(cls) -> HostSamples:
        numbers = np.empty(0, dtype=np.int32)
        return cls(np.empty(0, dtype=np.int64), numbers, numbers, numbers, (), numbers, ())


@dataclass(frozen=True, slots=True)
class CollectiveFacts:
    """The data of a collective besides its kernel."""

    kind: str
    """AllReduce and so on, see `collective_kind` (operation_classes)"""
    group: str = ""
    """the process group or communicator, '' if unknown"""
    members: tuple[int, ...] = ()
    """the ranks of the group, () if unknown"""
    size: int = 0
    """the number of ranks in the group, 0 if unknown"""
    sequence: int = -1
    size_bytes: int = -1
    """the message size of one rank: the input of an all-gather, the output of a reduce-scatter, what a rank
    sends in an all-to-all"""
    part_of: int = -1
    """kernels with the same number, from 0, are parts of one collective; -1: the kernel is all of it"""
