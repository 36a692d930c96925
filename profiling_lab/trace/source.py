# SPDX-License-Identifier: Apache-2.0
"""What a kind of file must be able to tell. `Trace` asks for each thing once, when it is first needed.

A new format is a class with these methods and a line in `formats.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from profiling_lab.trace.attribution import Attribution
from profiling_lab.trace.call_stacks import CallTable, StacksFound
from profiling_lab.trace.columns import I32, U8, Calls, Operations, Overheads, Ranges, Syncs
from profiling_lab.trace.extras import (
    CollectiveFacts,
    Device,
    HostSamples,
    HostSpans,
    InputShapes,
    LaunchShapes,
    MemoryEvents,
    Stream,
)
from profiling_lab.trace.facts import Gpu, TraceInfo
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.process_ids import Registry
from profiling_lab.trace.spans import Pauses, Window
from profiling_lab.trace.stacks import Stacks

Recorder: TypeAlias = Literal["profiling_lab", "nsys", "torch.profiler"]


class Tables(Protocol):
    """The tables of a trace, read when they are asked for: what `Trace` is to those who stand below it."""

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
    def why_empty(self) -> str: ...


class Source(Protocol):
    """One open file. Process and thread numbers are given in the order in which tables are read.

    Everything is of the whole file: `whole` is its trace, for what needs the tables beside its own. What has
    an answer here is what a format need not know.
    """

    path: Path
    recorder: Recorder
    processes: Registry
    threads: Registry

    def close(self) -> None:
        """Nothing stays open, unless a reader says otherwise."""
        return

    @property
    def is_cut(self) -> bool:
        """The file ends before its data does."""
        return False

    def why_empty(self) -> str:
        """Why it holds no GPU operation, where it holds none."""

    def operations(self) -> tuple[Operations, dict[str, int]]:
        """All GPU operations, and how many rows had to be repaired, by what was wrong with them."""

    def call_table(self) -> CallTable:
        """All API calls with their Python stacks."""

    def ranges(self) -> Ranges:
        """NVTX ranges or operators. Their stacks are rows of the call table's."""

    def overheads(self) -> Overheads:
        """Stretches in which the profiler or the driver held the program up; none where none were noted."""

    def pauses(self, processes: I32) -> Pauses:
        """When the recording of these processes paused."""
        return Pauses.none()

    def recorder_facts(self) -> dict[str, str]:
        """What our recorder noted about itself, {} for any other."""
        return {}

    def process_facts(self) -> dict[int, dict[str, str]]:
        """What our recorder noted in each process of a merged recording, by process id; {} in any other."""
        return {}

    def job_facts(self) -> Mapping[str, object]:
        """`rank` and `world_size`, as far as the recorder noted them; anything may stand there."""

    def info(self, whole: Tables) -> TraceInfo:
        """The facts of the file; without the ranks of its processes."""

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of the machine, as far as the file describes them."""

    def devices(self, used: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Device]:
        """By (process number, CUDA ordinal) the GPUs in use, as far as the file describes them."""

    def wall_clock(self, whole: Tables) -> int | None:
        """What to add to the times of the file to get nanoseconds since 1970; None where it does not say."""

    def thread_names(self) -> dict[int, str]:
        """What the operating system calls the threads: by number, of those that were numbered so far."""
        return {}

    def streams(self) -> dict[tuple[int, int], Stream]:
        """By process id and stream number; {} where the file describes none."""
        return {}

    def syncs(self, whole: Tables) -> Syncs:
        """Synchronizations as CUPTI noted them; none where it did not."""

    def launch_shapes(self, whole: Tables) -> LaunchShapes | None:
        """Per operation; None where the file has none."""

    def input_shapes(self, whole: Tables) -> InputShapes | None:
        """Per range the shapes of an operator's inputs; None where the file notes no shapes."""

    def range_styles(self, whole: Tables) -> U8:
        """The Style per range."""

    def memory(self) -> MemoryEvents | None:
        """Allocations of GPU memory; None where none were recorded."""

    def collectives(self, whole: Tables, rows: npt.NDArray[np.intp]) -> list[CollectiveFacts | None]:
        """What the file says of the collectives of these operations."""

    def system_calls(self) -> HostSpans:
        """Calls of the operating system that block, which nsys records with `--trace=osrt`."""
        return HostSpans.none()

    def off_cpu(self) -> HostSpans:
        """When threads were off their CPU, which nsys records with `--cpuctxsw=process-tree`."""
        return HostSpans.none()

    def host_events(self) -> HostSpans:
        """Garbage collections and compilations by torch.compile, by their own account."""
        return HostSpans.none()

    def samples(self, ownership: Ownership) -> HostSamples:
        """Samples that nsys takes of the CPU and of Python. Of a Python stack counts the innermost frame that
        is the user's own, else the innermost.
        """
        return HostSamples.none()
