# SPDX-License-Identifier: Apache-2.0
"""The tables of a trace as numpy columns, the same for all formats."""

from __future__ import annotations

from dataclasses import fields
from enum import IntEnum
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.records import dataclass, replace

I32: TypeAlias = npt.NDArray[np.int32]
I64: TypeAlias = npt.NDArray[np.int64]
U8: TypeAlias = npt.NDArray[np.uint8]
_Scalar = TypeVar("_Scalar", bound=np.generic)

NO_SEQUENCE = int(np.iinfo(np.int64).min)
"""A missing sequence number; -1 is for autograd nodes without a number."""
FARTHEST_NS = 1 << 61
"""73 years: larger times are damage, or ranges that never ended, and their sums overflow"""
OPEN_END = int(np.iinfo(np.int64).max)
"""the end of a range that was still open"""


class OperationKind(IntEnum):
    """The kind of a GPU operation."""

    KERNEL = 0
    COPY = 1
    SET = 2
    GRAPH = 3


class MemoryKind(IntEnum):
    """The memory kind of a copy or memset: the values of CUPTI."""

    PAGEABLE = 0
    PINNED = 1
    DEVICE = 2
    ARRAY = 3
    MANAGED = 4
    DEVICE_STATIC = 5
    MANAGED_STATIC = 6
    UNKNOWN = 7


class OverheadKind(IntEnum):
    """The kind of an overhead: the values of CUPTI. 3 to 5 and PROFILER are overhead of the profiler."""

    UNDEFINED = 0
    UNKNOWN = 1
    JIT_COMPILER = 2
    BUFFER_FLUSH = 3
    INSTRUMENTATION = 4
    RESOURCE = 5
    MODULE_LOADING = 6
    LAZY_FUNCTION_LOADING = 7
    COMMAND_BUFFER_FULL = 8
    PROFILER = 9
    """profiler overhead of unknown kind"""


class SyncKind(IntEnum):
    """The kind of a synchronisation: the values of CUPTI. A stream wait for an event does not block the
    host.
    """

    UNKNOWN = 0
    EVENT = 1
    STREAM_WAITS_EVENT = 2
    STREAM = 3
    DEVICE = 4


class Trait(IntEnum):
    """Properties of a call, as bits (csrc/analysis/autograd_link.h)."""

    IS_BACKWARD = 1
    OWN_STACK_ANSWERS = 2
    STARTS_BACKWARD = 4
    NODE_MADE_LATE = 8
    FRAMES_INSIDE_NODE = 16


@dataclass(frozen=True, slots=True)
class Operations:
    """One row per GPU operation: kernels, copies, memsets, and whole graphs if those were recorded as a
    whole.
    """

    kind: U8
    """OperationKind"""
    start_ns: I64
    end_ns: I64
    process: I32
    """row of Trace.processes"""
    device: I32
    """CUDA ordinal in the process"""
    stream: I64
    correlation: I64
    """-1 if the file has none"""
    name: I32
    """row of `names` and `short_names`"""
    size_bytes: I64
    """of copies and memsets, 0 for kernels"""
    names: tuple[str, ...]
    short_names: tuple[str, ...]
    source_memory: U8
    """MemoryKind that a copy reads, UNKNOWN for everything else"""
    target_memory: U8
    """MemoryKind that a copy or memset writes, UNKNOWN for kernels"""
    author: I64 | None = None
    """correlation id of the call that captured the operation into a graph: its line is used, not that of
    the replay. -1: none, or not recorded; None: -1 for all operations"""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> I64:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Calls:
    """One row per call of the CUDA runtime or driver API."""

    start_ns: I64
    end_ns: I64
    process: I32
    thread: I32
    """row of Trace.threads"""
    correlation: I64
    name: I32
    """row of `names`"""
    names: tuple[str, ...]
    stack: I32
    """row of Trace.stacks, 0 without Python frames"""
    next_sequence: I64
    """the autograd counter of this thread at the call; NO_SEQUENCE if unknown"""
    node_sequence: I64
    """the autograd node being evaluated; NO_SEQUENCE outside of backward, -1 for nodes without a number"""
    counter: I32
    """the counter that `next_sequence` was read from, a dense number; -1 if unknown"""
    node_counter: I32
    """the counter that the node's number comes from"""
    node_name: I32
    """row of `node_names`, -1 if unknown"""
    node_names: tuple[str, ...]
    traits: U8
    """bits of Trait"""
    own_ns: I64
    """what the recorder took of the call for itself, -1 unknown"""

    def __len__(self) -> int:
        return len(self.start_ns)


class Evaluates(IntEnum):
    """What a range evaluates in backward, if its recorder says so (csrc/analysis/autograd_link.h)."""

    NOTHING = 0
    ENGINE = 1
    NODE = 2


@dataclass(frozen=True, slots=True)
class Ranges:
    """NVTX ranges, or the operators and annotations of torch.profiler.

    A range that was open when the recording stopped ends at int64's maximum.
    """

    start_ns: I64
    end_ns: I64
    process: I32
    thread: I32
    name: I32
    """row of `names`: the text without `, seq = ..` and what follows it"""
    names: tuple[str, ...]
    sequence: I64
    """the number of an autograd node: N of `, seq = N`; NO_SEQUENCE if there is none"""
    evaluates: U8
    """Evaluates"""
    domain: I64
    """ranges nest only within one domain"""
    domains: dict[int, str]
    """names of the domains, if they have one"""
    stack: I32
    """row of Trace.stacks, 0 without a stack; torch.profiler records stacks of operators"""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Overheads:
    """Intervals in which the profiler or the driver delayed a thread of the program."""

    start_ns: I64
    end_ns: I64
    process: I32
    thread: I32
    kind: U8
    """OverheadKind"""

    @classmethod
    def none(cls) -> Overheads:
        nothing, number = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        return cls(nothing, nothing, number, number, np.empty(0, dtype=np.uint8))

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Syncs:
    """One row per synchronisation."""

    start_ns: I64
    end_ns: I64
    process: I32
    correlation: I64
    kind: U8
    """SyncKind"""
    stream: I64
    """that is waited for, or that waits for an event; -1 unknown, or all"""

    @classmethod
    def none(cls) -> Syncs:
        nothing, number = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        return cls(nothing, nothing, number, nothing, np.empty(0, dtype=np.uint8), nothing)

    def __len__(self) -> int:
        return len(self.start_ns)


def median(values: npt.NDArray[Any]) -> float:
    """As np.median of one row of numbers, which loads numpy's masked arrays, too."""
    ordered = np.sort(values, axis=None)
    if not len(ordered):
        return float("nan")
    return (float(ordered[(len(ordered) - 1) // 2]) + float(ordered[len(ordered) // 2])) / 2


def unique(values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """As np.unique, which loads numpy's masked arrays when it is first called: that takes as long as a small
    table.
    """
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def dense(values: npt.NDArray[Any]) -> tuple[I32, npt.NDArray[Any]]:
    """Number the distinct integers 0 .. n-1 in order of appearance: (number per row, the distinct values).

    Hashing, not sorting: the columns of a trace have millions of rows and few distinct values.
    """
    number, distinct = _analysis.numbering(np.ascontiguousarray(values, dtype=np.int64))
    return number, distinct.astype(values.dtype, copy=False)


def full(size: int, value: int, dtype: Any = np.int64) -> npt.NDArray[Any]:
    return np.full(size, value, dtype=dtype)


def numbered(*columns: npt.NDArray[np.integer]) -> I32:
    """Number the distinct combinations 0 .. n-1 in order of appearance: a number per row."""
    number = np.zeros(len(columns[0]), dtype=np.int32)
    for column in columns:
        local, distinct = dense(np.asarray(column, dtype=np.int64))
        number, _ = dense(number.astype(np.int64) * (len(distinct) + 1) + local)
    return number


def combined(*columns: npt.NDArray[np.integer]) -> tuple[I32, list[tuple[int, ...]]]:
    """A number per distinct combination, and the combinations."""
    number = numbered(*columns)
    size = int(number.max(initial=-1)) + 1
    first = np.zeros(size, dtype=np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return number, [tuple(int(column[i]) for column in columns) for i in first.tolist()]


_Rows = TypeVar("_Rows", bound=Any)


def rows_of(table: _Rows, rows: npt.NDArray[Any]) -> _Rows:
    """The given rows of a table, whose columns are its arrays."""
    columns = {field.name: getattr(table, field.name) for field in fields(table)}
    chosen = {n: column[rows] for n, column in columns.items() if isinstance(column, np.ndarray)}
    out: _Rows = replace(table, **chosen)
    return out
