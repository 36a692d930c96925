# SPDX-License-Identifier: Apache-2.0
"""Analyses over the columns of a trace (csrc/analysis). Every array is one-dimensional and contiguous;
nothing is copied.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

_I32: TypeAlias = npt.NDArray[np.int32]
_I64: TypeAlias = npt.NDArray[np.int64]
_U8: TypeAlias = npt.NDArray[np.uint8]
_Links: TypeAlias = tuple[_U8, _U8, _I32]
"""per launch: phase, match, and the launch whose stack it gets (-1 none)"""

NO_SEQUENCE: int
CUDA_CALLS: tuple[tuple[str, str, int], ...]
"""csrc/trace/cuda_calls.h: name without cu or cuda ('$': all of it), API ('d', 'r' or ' '), kind"""

def cuda_call(name: str) -> int:
    """The kind of a CUDA API call by its name: a trace.cuda_calls.CudaCall."""

def merged(start_ns: _I64, end_ns: _I64) -> tuple[_I64, _I64]:
    """The union of intervals: starts and ends, sorted and disjoint."""

def busy_ns(start_ns: _I64, end_ns: _I64, track: _I32, tracks: int) -> _I64:
    """The length of the union per track."""

def contain(
    start_ns: _I64, end_ns: _I64, track: _I32, time_ns: _I64, time_track: _I32, tolerance_ns: int
) -> tuple[_I32, _I32, int]:
    """Per range its parent, per moment the innermost range around it (-1 none), and how many ranges did
    not nest.
    """

def call_of(
    op_process: _I32, op_correlation: _I64, call_process: _I32, call_correlation: _I64, call_start_ns: _I64
) -> _I32:
    """Per operation the row of the call with its process and correlation id, the earliest one; -1 if there
    is none.
    """

def link_by_counter(
    start_ns: _I64, thread: _I32, next_sequence: _I64, node_sequence: _I64, node_thread: _I32, traits: _U8
) -> _Links:
    """Join backward launches with forward launches by replaying the autograd counter."""

def link_by_ranges(
    start_ns: _I64,
    end_ns: _I64,
    track: _I32,
    sequence: _I64,
    evaluates: _U8,
    process: _I32,
    launch_ns: _I64,
    launch_track: _I32,
    has_stack: _U8,
    traits: _U8,
    tolerance_ns: int,
) -> tuple[_Links, _I32, _I32, int]:
    """The same from operator ranges. Also per launch the innermost range, the forward range, and the
    ranges dropped.
    """

def attribute(
    call: _I32, stack: _I32, phase: _U8, match: _U8, forward_row: _I32, traits: _U8
) -> tuple[_I32, _U8, _U8, _U8]:
    """Per operation its stack (0 none), phase, match and reason; `call` is per operation, the others per
    call.
    """

def sum_by_key(key: _I32, value: _I64, keys: int) -> tuple[_I64, _I64]:
    """Exact sums and counts for the keys 0 .. keys-1; rows with a negative key are ignored."""

def nearest_marked(parent: _I32, marked: _U8) -> _I32:
    """Per node of a forest the nearest marked node on the path to the root, including itself; -1 if there is
    none.
    """

def set_time_ns(
    start_ns: _I64,
    end_ns: _I64,
    track: _I32,
    operation_class: _I32,
    window_start_ns: _I64,
    window_end_ns: _I64,
    window_track: _I32,
    classes: int,
) -> _I64:
    """[windows, 2**classes]: the time in which exactly the classes of each set (bit c: class c) were busy.

    A row sums to its window's length; set 0 is idle.
    """

def lane_time_ns(
    start_ns: _I64, end_ns: _I64, track: _I32, lane: _I32, tracks: int, lanes: int
) -> tuple[_I64, _I64, list[_I64]]:
    """Per lane its busy time and the part shared with another lane of its track; per track the time in which
    exactly 1, 2, .. lanes were busy.
    """

def nesting_lanes(start_ns: _I64, end_ns: _I64, track: _I32) -> _I32:
    """Per interval a lane of its track, from 0. The intervals of one lane nest; the first lane is 0."""

def period_of(symbols: _I32) -> tuple[int, int, int]:
    """The longest exact repetition: its begin, its period (0: none), and the number of periods."""

def gaps_between(start_ns: _I64, end_ns: _I64, track: _I32) -> tuple[_I64, _I64, _I32, _I32]:
    """Idle intervals between the first and the last operation of each track: start, end, track, and the
    operation that ends it.
    """

def cut_by_winners(
    window_start_ns: _I64,
    window_end_ns: _I64,
    window_track: _I32,
    start_ns: _I64,
    end_ns: _I64,
    track: _I32,
    layer: _I32,
) -> tuple[_I32, _I64, _I64, _I32]:
    """Windows split by the activity of their track: at each moment the activity of the highest layer,
    and in it the one that started last. Pieces: window, start, end, activity (-1 none).
    """

def numbering(values: _I64) -> tuple[_I32, _I64]:
    """A number per row, and the distinct values, in order of appearance."""

def statistics(
    key: _I32, value: _I64, keys: int
) -> tuple[_I64, _I64, _I64, _I64, _I64, npt.NDArray[np.float64]]:
    """Per key: total, count, smallest, largest, median (of two in the middle their middle, rounded down) and
    the sample's standard deviation; 0 for keys without rows. Rows with a negative key are ignored.
    """

def project(
    range_start_ns: _I64,
    range_end_ns: _I64,
    range_thread: _I32,
    call_start_ns: _I64,
    call_end_ns: _I64,
    call_thread: _I32,
    start_ns: _I64,
    end_ns: _I64,
) -> tuple[_I64, _I64, _I64, _I64]:
    """Per range of a thread the operations whose whole call lies inside: first start, last end, length of
    their union, and their number. The last five columns are per operation that has a call.
    """

def schedule(first: _I64, source: _I32, after_ns: _I64, late_ns: _I64, given_ns: _I64) -> tuple[_I64, _I32]:
    """When each moment of a graph comes, and the dependency that decided (-1: none, it comes at `given_ns`).

    The dependencies of moment m are the rows first[m] to first[m + 1] - 1: it comes `after_ns` after its
    `source`, which is a moment before it, and `late_ns` (per moment) later than the last of them.
    """

def deciding_chain(source: _I32, time_ns: _I64, decided_by: _I32, last: int, until_ns: int) -> _I32:
    """The dependencies that decided, from moment `last` backward to the first source at or before
    `until_ns`.
    """

class ArrowBatch:
    """Rows of a table. The columns that are arrays are views of it."""

    @property
    def width(self) -> int: ...
    def integers(self, column: int) -> _I64 | None:
        """None if it has a NULL or is no column of integers."""

    def texts(self, column: int) -> tuple[_I32, _U8] | None:
        """Offsets and bytes of a BLOB column, as TextCodes takes them. None if it has a NULL or is none."""

    def values(self, column: int) -> list[int | float | bytes | None]: ...

class ArrowStream:
    """The batches of an object with `__arrow_c_stream__`, without pyarrow."""

    def __init__(self, driver: object) -> None: ...
    def __iter__(self) -> ArrowStream: ...
    def __next__(self) -> ArrowBatch: ...

class TextCodes:
    """Numbers texts in order of first appearance. Texts have Arrow's layout: text i is
    bytes[offsets[i]:offsets[i + 1]].
    """

    def add(self, offsets: _I32, data: _U8) -> _I32:
        """The number of every text."""

    def add_operators(self, offsets: _I32, data: _U8) -> tuple[_I32, _I64]:
        """The same for emit_nvtx's texts, split into name and sequence number (NO_SEQUENCE without one)."""

    def texts(self) -> list[bytes]:
        """The distinct texts by number."""

class ChromeReader:
    """Reads the JSON of torch.profiler in chunks (csrc/trace/chrome_reader.h)."""

    found_events: bool
    """there is a list of events, empty or not"""

    def feed(self, piece: bytes) -> None:
        """The next bytes of the file, split at any position."""

    def finish(self) -> None:
        """End of the file. The functions below may be called afterwards."""

    def take_table(self, which: str) -> dict[str, npt.NDArray[Any]]:
        """Move out one table: operations, calls, operators, python, syncs, overheads, flows or memory."""

    def texts(self) -> tuple[tuple[str, ...], int]:
        """The distinct texts by number, and how many of them are not valid UTF-8."""

    def threads(self) -> tuple[_I64, _I64]:
        """pid and tid of the threads by number; below -2**40 for those that are texts."""

    def root(self) -> dict[str, bytes]:
        """Members of the root object other than the events, as JSON."""

    def damage(self) -> dict[str, int]:
        """Counts of malformed data (ChromeDamage in csrc/trace/chrome_tables.h)."""

    def others(self) -> dict[str, int]:
        """The number of complete events per category that has no table."""

def parents_by_id(id: _I64, parent_id: _I64) -> _I32:
    """Per call the row of the call with the id `parent_id`, -1 where there is none."""

def fold_stacks(parent: _I32, name: _I32, role: _U8) -> tuple[_I32, _I32, _I32, _I32]:
    """Stacks of calls that know their callers: per call its node in a tree of stacks; per node its parent,
    the name of its frame and of its module (-1 none). `role` is per name (FrameRole in
    csrc/analysis/stack_tree.h).
    """
