# SPDX-License-Identifier: Apache-2.0
"""The collectives of one rank, numbered so that the same one has the same number on every rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.ranks.facts import process_groups
from profiling_lab.analysis.ranks.kinds import Series, kind_of
from profiling_lab.analysis.ranks.nccl_payload import FARTHEST_BYTES, payloads
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I64, full
from profiling_lab.trace.kineto.source import ChromeSource
from profiling_lab.trace.operation_classes import OperationClass, operation_classes
from profiling_lab.trace.step_windows import StepWindows

PER_STEP = 1 << 20
"""the number of a collective is its step's times this plus its place in the step"""
AT_MOST = 20_000
"""collectives kept of one rank: those of its first steps"""
_ELEMENT_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "float8": 1, "int8": 1, "uint8": 1,
    "half": 2, "bfloat16": 2, "short": 2, "float16": 2, "int16": 2,
    "float": 4, "int": 4, "float32": 4, "int32": 4,
    "double": 8, "long": 8, "float64": 8, "int64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The collectives of one series on one rank."""

    number: I64
    """distinct"""
    start_ns: I64
    end_ns: I64
    size_bytes: I64
    """-1 unknown"""
    exposed_ns: I64
    """the part of each in which the rank did not compute"""


@dataclass(frozen=True, slots=True)
class Found:
    """All collectives of one rank."""

    series: dict[Series, Occurrences]
    outside: int
    """collectives outside of steps, which have no number"""
    left_out: int
    """collectives beyond AT_MOST"""

    def moved(self, by_ns: int, steps: int = 0) -> Found:
        """The same on another clock, and with other numbers of steps."""
        return Found(
            {
                series: Occurrences(
                    o.number + (steps * PER_STEP if series.numbered == "order" else 0),
                    o.start_ns + by_ns,
                    o.end_ns + by_ns,
                    o.size_bytes,
                    o.exposed_ns,
                )
                for series, o in self.series.items()
            },
            self.outside,
            self.left_out,
        )


@dataclass(frozen=True, slots=True)
class _Details:
    """Per collective what is known beyond its kernel."""

    kind: list[str]
    group: list[str]
    members: list[tuple[int, ...]]
    size: list[int]
    sequence: list[int]
    size_bytes: list[int]


def collectives(trace: Trace, rows: npt.NDArray[np.intp], steps: StepWindows, number: I64) -> Found:
    """rows: the operations of the rank; steps: its steps in time order, number: their numbers.

    A program makes the same collectives in the same order on every rank of a group, so they are counted in
    the order of their launches, within a step: recordings need not begin together.
    """
    operations = trace.operations
    classes = operation_classes(operations)[rows]
    compute = rows[classes == OperationClass.COMPUTE]
    computing = _analysis.merged(operations.start_ns[compute], operations.end_ns[compute])
    rows = rows[classes == OperationClass.COMMUNICATION]
    call = trace.attribution.call[rows]
    # Where the GPU runs behind or streams overtake each other only the host's order is the program's.
    by_host = bool(len(rows)) and bool((call >= 0).all())
    time_ns = trace.calls.start_ns[call] if by_host else operations.start_ns[rows]
    order = np.argsort(time_ns, kind="stable")
    rows, time_ns = rows[order], time_ns[order]
    starts, ends = (steps.host_start_ns, steps.host_end_ns) if by_host else (steps.start_ns, steps.end_ns)
    step = np.searchsorted(starts, time_ns, side="right") - 1
    inside = step >= 0
    inside[inside] = time_ns[inside] < ends[step[inside]]
    if steps.sign == "window":
        step, inside = np.zeros(len(rows), dtype=np.intp), np.ones(len(rows), dtype=bool)
    details = _details(trace, rows)
    outside = int((~inside & (np.array(details.sequence, dtype=np.int64) < 0)).sum())
    at: dict[Series, tuple[list[int], list[int]]] = {}
    seen: Counter[tuple[Series, int]] = Counter()
    for i in range(min(len(rows), AT_MOST)):
        by_sequence = details.sequence[i] >= 0
        if not by_sequence and not inside[i]:
            continue
        series = Series(
            details.kind[i],
            details.group[i],
            details.members[i],
            details.size[i],
            "sequence" if by_sequence else "order",
        )
        place = details.sequence[i]
        if not by_sequence:
            counted = (series, int(step[i]))
            place = int(number[step[i]]) * PER_STEP + seen[counted]
            seen[counted] += 1
        numbers, places = at.setdefault(series, ([], []))
        numbers.append(place)
        places.append(i)
    sizes = np.array(details.size_bytes, dtype=np.int64)
    return Found(
        {series: _occurrences(trace, rows, sizes, computing, *listed) for series, listed in at.items()},
        outside,
        max(len(rows) - AT_MOST, 0),
    )


def _occurrences(
    trace: Trace,
    rows: npt.NDArray[np.intp],
    sizes: I64,
    computing: tuple[I64, I64],
    numbers: list[int],
    places: list[int],
) -> Occurrences:
    """Of equal numbers (several kernels of one collective) the first start and the last end count."""
    number, first, where = np.unique(
        np.array(numbers, dtype=np.int64), return_index=True, return_inverse=True
    )
    at = np.array(places, dtype=np.intp)
    start_ns = full(len(number), np.iinfo(np.int64).max)
    end_ns = full(len(number), np.iinfo(np.int64).min)
    np.minimum.at(start_ns, where, trace.operations.start_ns[rows[at]])
    np.maximum.at(end_ns, where, trace.operations.end_ns[rows[at]])
    hidden_ns = _covered(end_ns, *computing) - _covered(start_ns, *computing)
    return Occurrences(number, start_ns, end_ns, sizes[at[first]], end_ns - start_ns - hidden_ns)


def _covered(time_ns: I64, starts: I64, ends: I64) -> I64:
    """The time that disjoint intervals cover before each moment."""
    if not len(starts):
        return np.zeros(len(time_ns), dtype=np.int64)
    at = np.searchsorted(starts, time_ns, side="right") - 1
    passed = np.concatenate([[0], np.cumsum(ends - starts)])
    within = np.minimum(time_ns, ends[at]) - starts[at]
    covered: I64 = np.where(at >= 0, passed[at] + within, 0)
    return covered


def _details(trace: Trace, rows: npt.NDArray[np.intp]) -> _Details:
    name, names = trace.operations.name[rows], trace.operations.short_names
    kinds = {number: kind_of(names[number]) for number in np.unique(name).tolist()}
    count = len(rows)
    out = _Details(
        [kinds[number] for number in name.tolist()],
        [""] * count,
        [()] * count,
        [0] * count,
        [-1] * count,
        [-1] * count,
    )
    if isinstance(trace.source, ChromeSource):
        _from_torch(out, trace, rows, trace.source)
    else:
        _from_nccl(out, trace, rows)
    return out


def _from_torch(out: _Details, trace: Trace, rows: npt.NDArray[np.intp], source: ChromeSource) -> None:
    noted, groups = source.collectives(), process_groups(source)
    for i, row in enumerate(trace.operation_rows[rows].tolist()):
        found = noted.of(row)
        if found is None:
            continue
        out.kind[i] = kind_of(found.name, out.kind[i])  # "coalesced" says less than the kernel
        # Kernels carry a shortened list of a large group; it is better to know no member than some.
        members = found.members if len(found.members) == found.size else groups.get(found.group, ())
        out.group[i], out.members[i] = found.group, members if len(members) == found.size else ()
        out.size[i], out.sequence[i] = max(found.size, 0), found.sequence
        # The part of one rank: what it gives to an all-gather, what it takes from a reduce-scatter.
        elements = found.elements_out if out.kind[i] == "ReduceScatter" else found.elements_in
        element = _ELEMENT_BYTES.get(found.dtype.lower().partition("_")[0], 0)
        size_bytes = elements * element
        out.size_bytes[i] = size_bytes if element and 0 <= size_bytes < FARTHEST_BYTES else -1


def _from_nccl(out: _Details, trace: Trace, rows: npt.NDArray[np.intp]) -> None:
    """NCCL launches in the call that its range is around, or at the end of the group that follows."""
    noted = payloads(trace)
    call = trace.attribution.call[rows]
    if not len(noted) or not len(rows):
        return
    known = call >= 0
    threads = np.array(trace.source.threads.ids or (0,), dtype=np.int64)
    at = np.full(len(rows), -1, dtype=np.intp)
    at[known] = noted.before(threads[trace.calls.thread[call[known]]], trace.calls.start_ns[call[known]])
    for i, row in enumerate(at.tolist()):
        if row >= 0 and kind_of(noted.name[row]) == out.kind[i]:
            communicator = noted.communicator[row]
            out.group[i] = f"communicator {int(communicator):x}" if communicator else ""
            out.size[i] = noted.members.get(communicator, 0)
            out.size_bytes[i] = int(noted.size_bytes[row])
