# SPDX-License-Identifier: Apache-2.0
"""Which operations of different streams ran at the same time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from profiling_lab import _analysis
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, dense
from profiling_lab.trace.kernel_names import base_name
from profiling_lab.trace.operation_classes import device_tracks
from profiling_lab.trace.spans import Rows
from profiling_lab.trace.trace import Trace

MEETING_NS = 1_000
"""two operations that share less are ignored"""
_PAIRS_AT_ONCE = 1 << 21


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two kinds of operations that overlapped on one device; names without template arguments."""

    key: str
    pid: int
    device: int
    name: str
    """the one that comes first in the alphabet"""
    other: str
    times: int
    """pairs of operations"""
    together_ns: int
    """summed over pairs: three that overlap are three pairs"""


def overlap_pairs(trace: Trace) -> tuple[PairRow, ...]:
    """All pairs of names, the longest time together first.

    Raises NotEnoughDataError if the trace has no GPU operation.
    """
    if not len(trace.operations):
        raise NotEnoughDataError(trace.why_empty())
    operations = trace.operations
    bases, base_of = _numbered(tuple(map(_base, operations.short_names)))
    base = base_of[operations.name]
    track, devices = device_tracks(operations)
    sums: dict[tuple[int, int, int], list[int]] = {}
    for device in range(len(devices)):
        rows = np.flatnonzero(track == device)
        rows = rows[np.argsort(operations.start_ns[rows], kind="stable")]
        for one, other in _meetings(operations.start_ns[rows], operations.end_ns[rows]):
            one, other = rows[one], rows[other]
            together = (
                np.minimum(operations.end_ns[one], operations.end_ns[other]) - operations.start_ns[other]
            )
            kept = (operations.stream[one] != operations.stream[other]) & (together >= MEETING_NS)
            lower = np.minimum(base[one], base[other])[kept].astype(np.int64)
            upper = np.maximum(base[one], base[other])[kept].astype(np.int64)
            number, pairs = dense(lower * len(bases) + upper)
            total, count = _analysis.sum_by_key(number, together[kept], len(pairs))
            for i, pair in enumerate(pairs.tolist()):
                entry = sums.setdefault((device, *divmod(pair, len(bases))), [0, 0])
                entry[0] += int(total[i])
                entry[1] += int(count[i])
    rows_out = []
    for (device, lower_base, upper_base), (together_ns, times) in sums.items():
        process, ordinal = devices[device]
        name, partner = sorted((bases[lower_base], bases[upper_base]))
        pid = trace.pids[process]
        key = f"{pid}/{ordinal}/{name}/{partner}"
        rows_out.append(PairRow(key, pid, ordinal, name, partner, times, together_ns))
    return tuple(sorted(rows_out, key=lambda row: (-row.together_ns, row.key)))


def _base(name: str) -> str:
    return name if name.startswith(("memcpy ", "memset")) else base_name(name)


def _numbered(names: tuple[str, ...]) -> tuple[tuple[str, ...], np.ndarray]:
    distinct = tuple(dict.fromkeys(names)) or ("",)
    number = {name: i for i, name in enumerate(distinct)}
    return distinct, np.array([number[name] for name in names] or [0], dtype=np.int32)


def _meetings(start_ns: I64, end_ns: I64) -> Iterator[tuple[Rows, Rows]]:
    """Pairs of rows in order of start of which the second begins before the first ends, some at a time."""
    until = np.searchsorted(start_ns, end_ns, side="left")
    partners = np.maximum(until - np.arange(len(start_ns)) - 1, 0)
    done = np.cumsum(partners)
    begin = 0
    while begin < len(partners):
        before = int(done[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(done, before + _PAIRS_AT_ONCE, side="right")), begin + 1)
        some = partners[begin:end]
        one = np.repeat(np.arange(begin, end), some)
        other = one + 1 + np.arange(len(one)) - np.repeat(np.cumsum(some) - some, some)
        yield one, other
        begin = end
