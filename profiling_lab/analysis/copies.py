# SPDX-License-Identifier: Apache-2.0
"""Copies and memsets: how much, how fast, from and to which kind of memory, and from which lines.

The driver moves pageable memory in pieces, through a pinned buffer of its own, while the call blocks. Some
recordings have only the last of these pieces: the copy seems faster than its link. Such a record says nothing
about the bandwidth, so it does not count there; the time in the call is the whole of it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.copy_peaks import Peak, host_link
from profiling_lab.analysis.coverage import Coverage
from profiling_lab.analysis.places import Place, covered, operation_places
from profiling_lab.analysis.stats import Stats, StatsByKey
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, MemoryKind, OperationKind, Operations, combined, unique
from profiling_lab.trace.cuda_calls import CudaCall, are_any
from profiling_lab.trace.operation_classes import device_tracks
from profiling_lab.trace.trace import Trace

By: TypeAlias = Literal["line", "memory", "direction"]
GROUPINGS: tuple[By, ...] = get_args(By)
LARGE_BYTES = 1_000_000
"""copies from this size on measure the bandwidth: smaller ones are mostly start-up time"""

_HOST = (MemoryKind.PAGEABLE, MemoryKind.PINNED)


@dataclass(frozen=True, slots=True)
class CopyRow:
    """Copies of one direction, between two kinds of memory, from one line, as far as `by` splits them."""

    key: str
    direction: str
    """'memcpy HtoD', ..., 'memset'"""
    source: str
    """kind of memory, '' where rows do not differ by it; 'unknown' where the file does not say"""
    target: str
    times: Stats
    """ns"""
    sizes: Stats
    """bytes"""
    share_frac: float
    """of the time of all copies and sets"""
    pageable: bool
    """the host's side is pageable memory: the driver copies it once more, and the call blocks"""
    calls_ns: int | None
    """how long the calls took that made them; None where a call is not known"""
    large: int
    """copies of LARGE_BYTES or more"""
    partial: int
    """pageable ones of these that seem faster than their link: the record has only a part of the copy"""
    bytes_per_s: int | None
    """over the other large ones, None without"""
    peak: Peak | None
    """what the link could do at most; None where it is not known, or where rows mix links"""
    places: tuple[Place, ...]

    @property
    def of_peak_frac(self) -> float | None:
        if self.peak is None or self.bytes_per_s is None:
            return None
        return self.bytes_per_s / self.peak.bytes_per_s


@dataclass(frozen=True, slots=True)
class CopiesResult:
    """Rows by time, the longest first."""

    rows: tuple[CopyRow, ...]
    coverage: Coverage
    by: By
    copies: int
    sets: int
    total_bytes: int
    """copied, sets left out"""
    total_ns: int
    pageable_ns: int
    """of copies with pageable memory"""
    total_matched: int

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


def copies(
    trace: Trace,
    by: By = "line",
    own: tuple[str, ...] | None = None,
    limit: int | None = None,
    peak_bytes_per_s: int | None = None,
) -> CopiesResult:
    """Sum copies and sets by direction, kinds of memory and line.

    by: 'direction' and 'memory' leave out what comes after. own: see Ownership. peak_bytes_per_s: of the link
    between host and GPU, where the user knows it better.

    Raises UsageError, and NotEnoughDataError if the trace has no GPU operation.
    """
    if by not in GROUPINGS:
        raise UsageError(f"by must be one of {', '.join(GROUPINGS)}, not {by!r}")
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    own_row, coverage = covered(trace, own)
    operations = trace.operations
    wanted = (operations.kind == OperationKind.COPY) | (operations.kind == OperationKind.SET)
    rows = np.flatnonzero(wanted)
    if not len(operations):
        raise NotEnoughDataError(trace.why_empty())
    placed = operation_places(trace, own_row)
    source, target = operations.source_memory[rows], operations.target_memory[rows]
    columns: list[npt.NDArray[np.integer]] = [operations.name[rows], source, target, placed.line_number[rows]]
    number, distinct = combined(*columns[: {"direction": 1, "memory": 3, "line": 4}[by]])
    key = np.full(len(operations), -1, dtype=np.int32)
    key[rows] = number
    times = StatsByKey.of(key, operations.duration_ns, len(distinct))
    sizes = StatsByKey.of(key, operations.size_bytes, len(distinct))
    # A copy that the window cuts has all its bytes but not all its time.
    whole_ns = trace.whole.operations.duration_ns[trace.operation_rows]
    is_large = (operations.size_bytes >= LARGE_BYTES) & (operations.duration_ns == whole_ns)
    peaks, link_bytes_per_s = _peaks(trace, key, len(distinct), peak_bytes_per_s)
    pageable = _pageable(operations)
    needs_ns = operations.size_bytes * 1e9 / link_bytes_per_s
    is_partial = is_large & pageable & (operations.duration_ns < needs_ns)
    measured = np.where(is_large & ~is_partial, key, -1).astype(np.int32)
    measured_ns, number_measured = _analysis.sum_by_key(measured, operations.duration_ns, len(distinct))
    measured_bytes, _ = _analysis.sum_by_key(measured, operations.size_bytes, len(distinct))
    partial = np.bincount(key[is_partial], minlength=len(distinct))
    is_pageable = np.zeros(len(distinct), dtype=bool)
    is_pageable[key[pageable]] = True
    labels = [_label(operations, columns) for columns in distinct]
    ranked = times.ranked([" ".join(label) + f"{i:09}" for i, label in enumerate(labels)])
    shown = ranked[:limit]
    places = placed.by_key(key, operations.duration_ns, shown)
    calls_ns = _calls_ns(trace, key, len(distinct))
    total_ns = int(times.total.sum())
    out = []
    for i in shown:
        direction, source_kind, target_kind = labels[i]
        line = places[i][0].key if by == "line" else ""
        out.append(
            CopyRow(
                key="/".join(part for part in (direction, source_kind, target_kind, line) if part),
                direction=direction,
                source=source_kind,
                target=target_kind,
                times=times[i],
                sizes=sizes[i],
                share_frac=int(times.total[i]) / total_ns if total_ns else 0.0,
                pageable=bool(is_pageable[i]),
                calls_ns=calls_ns[i],
                large=int(number_measured[i] + partial[i]),
                partial=int(partial[i]),
                bytes_per_s=int(measured_bytes[i]) * 1_000_000_000 // int(measured_ns[i])
                if measured_ns[i]
                else None,
                peak=peaks[i],
                places=places[i],
            )
        )
    is_copy = operations.kind == OperationKind.COPY
    return CopiesResult(
        rows=tuple(out),
        coverage=coverage,
        by=by,
        copies=int(is_copy.sum()),
        sets=int((operations.kind == OperationKind.SET).sum()),
        total_bytes=int(operations.size_bytes[is_copy].sum()),
        total_ns=total_ns,
        pageable_ns=int(operations.duration_ns[pageable].sum()),
        total_matched=len(ranked),
    )


def _pageable(operations: Operations) -> npt.NDArray[np.bool_]:
    """Per operation, whether it is a copy from or to pageable memory."""
    either = (operations.source_memory == MemoryKind.PAGEABLE) | (
        operations.target_memory == MemoryKind.PAGEABLE
    )
    return np.asarray(either & (operations.kind == OperationKind.COPY))


def _calls_ns(trace: Trace, key: I32, keys: int) -> list[int | None]:
    """Per key the time in the calls that made its copies and sets, each call once. A call that makes several
    operations, such as the launch of a graph, is not one of them.
    """
    call, calls = trace.attribution.call, trace.calls
    rows = np.flatnonzero(key >= 0)
    makes = are_any(calls, (CudaCall.COPY, CudaCall.BLOCKING_COPY, CudaCall.SET, CudaCall.PREFETCH))
    known = (call[rows] >= 0) & np.append(makes, False)[call[rows]]
    pairs = unique(key[rows[known]].astype(np.int64) * len(calls) + call[rows[known]])
    of_key, of_call = np.divmod(pairs, max(len(calls), 1))
    took_ns = (calls.end_ns - calls.start_ns)[of_call]
    total, _ = _analysis.sum_by_key(of_key.astype(np.int32), took_ns, keys)
    unknown = np.bincount(key[rows[~known]], minlength=keys)
    return [None if unknown[i] else int(total[i]) for i in range(keys)]


def _label(operations: Operations, columns: tuple[int, ...]) -> tuple[str, str, str]:
    direction = operations.names[columns[0]]
    if len(columns) == 1:
        return direction, "", ""
    source, target = (MemoryKind(kind).name.lower().replace("_", " ") for kind in columns[1:3])
    return (direction, "", target) if direction == "memset" else (direction, source, target)


def _peaks(
    trace: Trace, key: I32, keys: int, link_bytes_per_s: int | None
) -> tuple[list[Peak | None], npt.NDArray[np.float64]]:
    """Per key what its copies could reach, None where it is not known or not the same for all; and per
    operation what its link to the host carries in a second, infinite where that is not known.
    """
    operations = trace.operations
    known = trace.devices
    track, numbers = device_tracks(operations)
    host = np.isin(operations.source_memory, _HOST) | np.isin(operations.target_memory, _HOST)
    # 0: within a device, 1: between host and device, 2: anything else.
    names = np.array([2 if name.endswith(("PtoP", "HtoH", "memset")) else 0 for name in operations.names])
    kind = np.where(host | _crosses(operations), 1, 0)
    kind = np.where(names[operations.name] == 2, 2, kind)
    rows = np.flatnonzero(key >= 0)
    of_row, distinct = combined(key[rows], track[rows], kind[rows])
    found: list[set[Peak | None]] = [set() for _ in range(keys)]
    limits = []
    for number, device, what in distinct:
        gpu = known.get(numbers[device])
        peak: Peak | None = None
        if what == 1 and link_bytes_per_s is not None:
            peak = Peak(link_bytes_per_s, "as given")
        elif what == 1 and gpu is not None:
            peak = host_link(gpu.name)
        elif what == 0 and gpu is not None and gpu.memory_bytes_per_s is not None:
            # Within a device every byte is read and written.
            peak = Peak(gpu.memory_bytes_per_s // 2, "half of the memory's bandwidth, vendor figure")
        found[number].add(peak)
        limits.append(float(peak.bytes_per_s) if peak and what == 1 else np.inf)
    carried = np.full(len(operations), np.inf)
    carried[rows] = np.array(limits)[of_row]
    return [next(iter(peaks)) if len(peaks) == 1 else None for peaks in found], carried


def _crosses(operations: Operations) -> npt.NDArray[np.bool_]:
    """Per operation, whether it goes between host and device, by its name."""
    crosses = [name.endswith(("HtoD", "DtoH", "HtoA", "AtoH")) for name in operations.names]
    return np.array(crosses, dtype=bool)[operations.name]
