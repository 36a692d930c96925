# SPDX-License-Identifier: Apache-2.0
"""The collectives of NCCL's kernels: which calls, with their NVTX payloads, launched which kernel.

NCCL launches a kernel inside the range of its call, or for the calls of a group inside ncclGroupEnd. Where it
fuses calls into one kernel their sizes add up; where it is not clear which kernel is whose, the size is
unknown.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.trace.columns import I64
from profiling_lab.trace.cuda_calls import CudaCall, are_any
from profiling_lab.trace.extras import CollectiveFacts
from profiling_lab.trace.nsys.nccl_payload import Payloads, payloads
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.operation_classes import collective_kind
from profiling_lab.trace.process_ids import Registry
from profiling_lab.trace.source import Tables

_SEND, _RECEIVE, _PAIRWISE = "ncclSend", "ncclRecv", "SendRecv"
_OF_PAIRS = frozenset({_PAIRWISE, "AllToAll", "Gather", "Scatter"})
"""NCCL makes these of sends and receives: their kernels have one name"""


def read_collectives(
    file: SqliteFile, threads: Registry, whole: Tables, rows: npt.NDArray[np.intp]
) -> list[CollectiveFacts | None]:
    """The collectives of NCCL kernels, None for those without a payload."""
    noted = payloads(file)
    if not len(noted) or not len(rows):
        return [None] * len(rows)
    names = whole.operations.short_names
    kinds = [collective_kind(names[name]) for name in whole.operations.name[rows].tolist()]
    at = _latest_calls(noted, threads, whole, rows)
    matches: dict[tuple[int, str], list[int]] = {}
    for i, (call, kind) in enumerate(zip(at.tolist(), kinds, strict=True)):
        if call >= 0:
            group = int(noted.group[call])
            matches.setdefault((group if group >= 0 else -2 - call, kind), []).append(i)
    calls_of = _calls_of_groups(noted)
    out: list[CollectiveFacts | None] = [None] * len(rows)
    for (group, kind), kernels in matches.items():
        calls = calls_of[group] if group >= 0 else [-2 - group]
        calls = [call for call in calls if _launches(collective_kind(noted.name[call]), kind)]
        if not calls:
            continue
        launched_ns = whole.calls.start_ns[whole.attribution.call[rows[kernels]]]
        facts_of = _facts(noted, calls, kind, launched_ns)
        for i, facts in zip(kernels, facts_of, strict=True):
            out[i] = facts
    return out


def _latest_calls(
    noted: Payloads, threads: Registry, whole: Tables, rows: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Per kernel the latest NCCL call on the thread that launched it, -1 without one. A graph's kernels were
    captured at another time.
    """
    call = whole.attribution.call[rows]
    known = np.flatnonzero(call >= 0)
    known = known[~are_any(whole.calls, (CudaCall.GRAPH_LAUNCH,))[call[known]]]
    tids = np.array(threads.ids or (0,), dtype=np.int64)
    at = np.full(len(rows), -1, dtype=np.intp)
    at[known] = noted.before(tids[whole.calls.thread[call[known]]], whole.calls.start_ns[call[known]])
    return at


def _calls_of_groups(noted: Payloads) -> dict[int, list[int]]:
    out: dict[int, list[int]] = {}
    for call, group in enumerate(noted.group.tolist()):
        if group >= 0:
            out.setdefault(group, []).append(call)
    return out


def _launches(call_kind: str, kernel_kind: str) -> bool:
    """Whether a call of this kind is done by kernels of this kind."""
    return call_kind == kernel_kind or (kernel_kind == _PAIRWISE and call_kind in _OF_PAIRS)


def _facts(noted: Payloads, calls: list[int], kind: str, launched_ns: I64) -> list[CollectiveFacts]:
    """Of each of the kernels that were launched at these times for these calls together."""
    kernels = len(launched_ns)
    communicators = {noted.communicator[call] for call in calls}
    communicator = communicators.pop() if len(communicators) == 1 else ""
    group = f"communicator {int(communicator):x}" if communicator else ""
    size = noted.members.get(communicator, 0) if communicator else 0
    if kind == _PAIRWISE:
        grouped = bool(noted.group[calls[0]] >= 0)
        # A send that launched nothing by itself is in a group of which the file does not tell.
        alone = not grouped and bool((launched_ns <= noted.end_ns[calls[0]]).all())
        if not communicator or not (grouped or alone):
            return [CollectiveFacts(kind, group, (), size)] * kernels
        kind, size_bytes = _pairwise(noted, calls, size)
        # However many kernels NCCL makes of them, ranks meet once.
        return [CollectiveFacts(kind, group, (), size, -1, size_bytes, calls[0])] * kernels
    sizes = noted.size_bytes[calls].tolist()
    if kernels == 1 and group:
        each = [sum(sizes)]
    elif len(sizes) == 1 or (kernels == len(sizes) and len(set(sizes)) == 1):
        each = [sizes[0]] * kernels
    else:
        each = [-1] * kernels
    return [CollectiveFacts(kind, group, (), size, -1, size_bytes) for size_bytes in each]


def _pairwise(noted: Payloads, calls: list[int], size: int) -> tuple[str, int]:
    """What sends and receives are together, and the bytes that this rank sends, or else receives."""
    kinds = {collective_kind(noted.name[call]) for call in calls}
    if kinds != {_PAIRWISE}:
        kind = kinds.pop() if len(kinds) == 1 else _PAIRWISE
        # Its size is that of the block for one rank.
        whole = int(noted.size_bytes[calls].sum()) * size if kind == "AllToAll" and size else -1
        return kind, whole
    sends = [call for call in calls if noted.name[call] == _SEND]
    receives = [call for call in calls if noted.name[call] == _RECEIVE]
    size_bytes = int(max(noted.size_bytes[sends].sum(), noted.size_bytes[receives].sum()))
    to, of = (set(noted.peer[part].tolist()) for part in (sends, receives))
    is_everyone = size > 1 and (len(to) == size or len(to) == size - 1 > 1)
    return ("AllToAll" if is_everyone and to == of and -1 not in to else _PAIRWISE), size_bytes
