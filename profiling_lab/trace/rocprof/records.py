# SPDX-License-Identifier: Apache-2.0
"""What rocprofv3 records, the same for its database and its JSON file.

A table is a dict of equally long columns. Ids of processes and threads are global ids (see process_ids),
ids of agents are those of the file, names are rows of `texts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from profiling_lab.records import replace
from profiling_lab.trace.columns import FARTHEST_NS, I64

Table = dict[str, I64]

PROCESS_BITS, NODE_BITS = 24, 48

_TIMED = ("start", "end", "process", "thread", "correlation", "name")
_EXTENTS = ("block_x", "block_y", "block_z", "grid_x", "grid_y", "grid_z")
KERNELS = (*_TIMED, "agent", "queue", "stream", "registers", "shared_bytes", *_EXTENTS)
COPIES = (*_TIMED, "source", "target", "queue", "stream", "size_bytes")
REGIONS = (*_TIMED, "ancestor", "category", "kind")
"""calls and ranges. ancestor: the correlation id of the call around it; kind: what it is, `roctxThreadRangeA`
for a range whose name is its message
"""
ALLOCATIONS = ("time", "process", "agent", "address", "size_bytes", "is_free")
"""of device memory; a free has the address alone"""


class MemoryBank(msgspec.Struct):
    """Of an agent."""

    size_in_bytes: int = 0


class Agent(msgspec.Struct):
    """A CPU or GPU, with the names of the file."""

    type: int = 0
    """1 CPU, 2 GPU"""
    name: str = ""
    """`gfx950`"""
    product_name: str = ""
    cu_count: int = 0
    logical_node_type_id: int = 0
    """the number among the agents of its type"""
    mem_banks: list[MemoryBank] = []

    @property
    def is_gpu(self) -> bool:
        return self.type == 2

    @property
    def title(self) -> str:
        """`AMD Instinct MI350X (gfx950)`"""
        if not self.product_name or self.product_name == self.name:
            return self.name
        return f"{self.product_name} ({self.name})"

    @property
    def memory_bytes(self) -> int:
        return sum(bank.size_in_bytes for bank in self.mem_banks)


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the recording; 0 and '' mean unknown."""

    pid: int
    command: str
    init_ns: int
    fini_ns: int


@dataclass(frozen=True, slots=True)
class Records:
    """All that a file of rocprofv3 contains."""

    schema: str
    """`rocpd 3` or `JSON`"""
    file_bytes: int
    processes: tuple[Process, ...]
    agents: dict[tuple[int, int], Agent]
    """by global process id and agent id"""
    texts: tuple[str, ...]
    kernels: Table
    copies: Table
    regions: Table
    allocations: Table

    def possible(self) -> tuple[Records, int]:
        """Without records at impossible times, and the number of GPU operations among those."""
        kernels, copies, regions = map(_possible, (self.kernels, self.copies, self.regions))
        out = replace(self, kernels=kernels, copies=copies, regions=regions)
        return out, self.operation_count - out.operation_count

    @property
    def operation_count(self) -> int:
        return len(self.kernels["start"]) + len(self.copies["start"])


def _possible(table: Table) -> Table:
    earliest = np.minimum(table["start"], table["end"])
    latest = np.maximum(table["start"], table["end"])
    kept = (earliest > -FARTHEST_NS) & (latest < FARTHEST_NS)
    return {name: column[kept] for name, column in table.items()}


def global_process(node: int, pid: int) -> int:
    return node << NODE_BITS | (pid & 0xFFFFFF) << PROCESS_BITS


def global_thread(process: I64, tid: I64) -> I64:
    return process | (tid & 0xFFFFFF)


def joined(tables: Iterable[Table], columns: tuple[str, ...]) -> Table:
    """The rows of all tables, one after the other."""
    every = [*tables]
    nothing = np.empty(0, dtype=np.int64)
    return {name: np.concatenate([nothing, *(table[name] for table in every)]) for name in columns}


class Texts:
    """Numbers for texts, in order of first appearance."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))
