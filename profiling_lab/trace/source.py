# SPDX-License-Identifier: Apache-2.0
"""What a kind of file must be able to tell. `Trace` asks for each thing once, when it is first needed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from profiling_lab.trace.columns import Operations, Overheads, Ranges
from profiling_lab.trace.nsys.calls import CallTable
from profiling_lab.trace.process_ids import Registry

Recorder: TypeAlias = Literal["profiling_lab", "nsys", "torch.profiler"]


class Source(Protocol):
    """One open file. Process and thread numbers are given in the order in which tables are read."""

    path: Path
    recorder: Recorder
    processes: Registry
    threads: Registry

    def close(self) -> None: ...

    def operations(self) -> tuple[Operations, dict[str, int]]:
        """All GPU operations, and how many rows had to be repaired, by what was wrong with them."""

    def call_table(self) -> CallTable:
        """All API calls with their Python stacks."""

    def ranges(self) -> Ranges:
        """NVTX ranges or operators. Their stacks are rows of the call table's."""

    def overheads(self) -> Overheads:
        """Stretches in which the profiler or the driver held the program up; none where none were noted."""

    def recorder_facts(self) -> dict[str, str]:
        """What our recorder noted about itself, {} for any other."""
