# SPDX-License-Identifier: Apache-2.0
"""The interface of a trace format. `Trace` calls each method once, when it is first needed.

A new format is a class with these methods and an entry in FORMATS in `formats.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from profiling_lab.trace.attribution import Attribution
from profiling_lab.trace.call_stacks import CallTable, StacksFound
from profiling_lab.trace.columns import I32, U8, Calls, Operations, Overheads, Ranges, Syncs
from profiling_lab.trace.extras import (
    CollectiveFacts,
    CounterSamples,
    Device,
    EnergySamples,
    HostSamples,
    HostSpans,
    InputShapes,
    LaunchShapes,
    MemoryEvents,
    Stream,
    WorkRows,
)
from profiling_lab.trace.facts import Gpu, TraceInfo
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.process_ids import Registry
from profiling_lab.trace.spans import Pauses, Window
from profiling_lab.trace.stacks import Stacks

if TYPE_CHECKING:
    from profiling_lab.trace.memory_history import MemoryHistory

Recorder: TypeAlias = Literal[
    "profiling_lab", "nsys", "torch.profiler", "torch.cuda.memory", "rocprofv3", "XLA", "ncu"
]


class Tables(Protocol):
    """The tables of a trace, read on first use. This is the part of `Trace` that lower layers may use."""

    path: Path
    window: Window | None

    @property
    def whole(self) -> Tables: ...
    @property
    def recorder(self) -> Recorder: ...
    @property
    def operations(self) -> Operations: ...
    @property
    def calls(self) -> Calls: ...
    @property
    def ranges(self) -> Ranges: ...
    @property
    def stacks(self) -> Stacks: ...
    @property
    def stacks_found(self) -> StacksFound: ...
    @property
    def attribution(self) -> Attribution: ...
    @property
    def pauses(self) -> Pauses: ...
    @property
    def first_ns(self) -> int: ...
    @property
    def gpus(self) -> tuple[Gpu, ...]: ...
    @property
    def pids(self) -> tuple[int, ...]: ...
    @property
    def job_facts(self) -> Mapping[str, object]: ...
    @property
    def process_facts(self) -> dict[int, dict[str, str]]: ...
    def samples(self, ownership: Ownership) -> HostSamples: ...
    def why_empty(self) -> str: ...


class Source(Protocol):
    """One open file. Process and thread numbers are given in the order in which tables are read.

    Everything is about the whole file; `whole` is its trace, for methods that need other tables. Methods
    with a default implementation are optional for a format.
    """

    path: Path
    recorder: Recorder
    processes: Registry
    threads: Registry

    def close(self) -> None:
        """Close the file; by default nothing is open."""
        return

    @property
    def is_cut(self) -> bool:
        """Whether the file is truncated."""
        return False

    def why_empty(self) -> str:
        """Why the file has no GPU operation, if it has none."""

    def operations(self) -> tuple[Operations, dict[str, int]]:
        """All GPU operations, and the number of repaired rows by kind of damage."""

    def call_table(self) -> CallTable:
        """All API calls with their Python stacks."""

    def ranges(self) -> Ranges:
        """NVTX ranges or operators. Their stacks are rows of the call table's stacks."""

    def overheads(self) -> Overheads:
        """Intervals in which the profiler or the driver delayed the program; empty if not recorded."""
        return Overheads.none()

    def pauses(self, processes: I32) -> Pauses:
        """The pauses in the recording of these processes."""
        return Pauses.none()

    def recorder_facts(self) -> dict[str, str]:
        """The metadata of our recorder, {} for any other."""
        return {}

    def process_facts(self) -> dict[int, dict[str, str]]:
        """The metadata of our recorder per process id of a merged recording; {} for any other."""
        return {}

    def job_facts(self) -> Mapping[str, object]:
        """`rank` and `world_size` if the recorder stored them, not validated."""
        return {}

    def info(self, whole: Tables) -> TraceInfo:
        """The properties of the file, without the ranks of its processes."""

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of the machine, as far as the file describes them."""

    def devices(self, used: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Device]:
        """By (process number, CUDA ordinal) the GPUs in use, as far as the file describes them."""

    def wall_clock(self, whole: Tables) -> int | None:
        """The offset from times in the file to nanoseconds since 1970; None if unknown."""

    def thread_names(self) -> dict[int, str]:
        """The thread names of the operating system, by number, for all threads numbered so far."""
        return {}

    def streams(self) -> dict[tuple[int, int], Stream]:
        """By process id and stream number; {} if the file describes none."""
        return {}

    def syncs(self, whole: Tables) -> Syncs:
        """Synchronisations recorded by CUPTI; empty if there are none."""
        return Syncs.none()

    def launch_shapes(self, whole: Tables) -> LaunchShapes | None:
        """Per operation; None if the file has none."""
        return None

    def input_shapes(self, whole: Tables) -> InputShapes | None:
        """Per range the input shapes of an operator; None if the file has no shapes."""
        return None

    def range_styles(self, whole: Tables) -> U8:
        """The Style per range."""

    def memory(self) -> MemoryEvents | None:
        """Allocations of GPU memory; None if not recorded."""
        return None

    def memory_history(self) -> tuple[MemoryHistory, ...]:
        """What torch's caching allocator did, per process and device; () if not recorded."""
        return ()

    def work(self) -> WorkRows | None:
        """What the operators of one step must do; None if not counted."""
        return None

    def energy(self) -> tuple[EnergySamples, ...]:
        """The energy counters, per process and device; () if not recorded."""
        return ()

    def counters(self) -> tuple[CounterSamples, ...]:
        """The sampled hardware counters, per process and device; () if not recorded."""
        return ()

    def collectives(self, whole: Tables, rows: npt.NDArray[np.intp]) -> list[CollectiveFacts | None]:
        """The collectives of these operations; None where nothing is known of one."""
        return [None] * len(rows)

    def system_calls(self) -> HostSpans:
        """Blocking system calls, which nsys records with `--trace=osrt`."""
        return HostSpans.none()

    def off_cpu(self) -> HostSpans:
        """Time of threads off the CPU, which nsys records with `--cpuctxsw=process-tree`."""
        return HostSpans.none()

    def host_events(self) -> HostSpans:
        """Garbage collections, and compilations by torch.compile."""
        return HostSpans.none()

    def source_texts(self) -> dict[tuple[str, int], str]:
        """By file and line the text of the line of code; {} if the file has none."""
        return {}

    def samples(self, ownership: Ownership) -> HostSamples:
        """CPU and Python samples. A Python sample is placed at its innermost frame in own code, else at its
        innermost frame.
        """
        return HostSamples.none()
