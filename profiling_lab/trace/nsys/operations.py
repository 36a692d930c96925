# SPDX-License-Identifier: Apache-2.0
"""GPU operations from the activity tables of the nsys schema."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from profiling_lab.trace.columns import (
    FARTHEST_NS,
    I64,
    U8,
    MemoryKind,
    OperationKind,
    Operations,
    dense,
    full,
    unique,
)
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.nsys.strings import Strings
from profiling_lab.trace.process_ids import Registry

TABLES = {
    OperationKind.KERNEL: "CUPTI_ACTIVITY_KIND_KERNEL",
    OperationKind.COPY: "CUPTI_ACTIVITY_KIND_MEMCPY",
    OperationKind.SET: "CUPTI_ACTIVITY_KIND_MEMSET",
    OperationKind.GRAPH: "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
}

# Older exports have no ENUM tables, so the values of copyKind are listed here.
COPY_KINDS = (
    "unknown",
    "HtoD",
    "DtoH",
    "HtoA",
    "AtoH",
    "AtoA",
    "AtoD",
    "DtoA",
    "DtoD",
    "HtoH",
    "PtoP",
    "UVM HtoD",
    "UVM DtoH",
    "UVM DtoD",
)

_UNKNOWN_MEMORY: dict[str, int | str] = {
    "srcKind": int(MemoryKind.UNKNOWN),
    "dstKind": int(MemoryKind.UNKNOWN),
}
_NO_PROCESS = 1  # smaller than any global id, whose process is above bit 24
_NO_TIME = int(np.iinfo(np.int64).min)  # beyond FARTHEST_NS, so a row without a time is skipped
_SHARED: dict[str, int | str] = {
    "start": _NO_TIME,
    "end": _NO_TIME,
    "deviceId": 0,
    "streamId": 0,
    "correlationId": -1,
}


def read_operations(
    file: SqliteFile, strings: Strings, processes: Registry, only_process: Callable[[], int]
) -> tuple[Operations, dict[str, int]]:
    """All GPU operations, and the number of repaired rows by kind of damage.

    `only_process` returns the process of rows without one.
    """
    nodes = file.columns("PYREC_GRAPH_NODE") != ()
    parts: list[dict[str, I64]] = []
    names: list[str] = []
    short_names: list[str] = []
    for kind, stem in TABLES.items():
        table = file.newest(stem)
        if table is None:
            continue
        file.require(table, "start", "end")
        wanted = _SHARED | {"globalPid": _NO_PROCESS} | _details(kind, file.columns(table))
        rows = file.select(table, wanted | ({"graphNodeId": 0} if nodes else {}))
        unnamed = rows["globalPid"] == _NO_PROCESS
        if unnamed.any():
            rows["globalPid"] = np.where(unnamed, only_process(), rows["globalPid"])
        rows["kind"] = full(len(rows["start"]), kind)
        numbers, kind_names, kind_short = _named(kind, rows, strings)
        rows["name"] = numbers.astype(np.int64) + len(names)
        names += kind_names
        short_names += kind_short
        parts.append(rows)

    def column(name: str) -> I64:
        return np.concatenate([np.empty(0, dtype=np.int64), *(part[name] for part in parts)])

    earliest, latest = np.minimum(column("start"), column("end")), np.maximum(column("start"), column("end"))
    possible = (earliest > -FARTHEST_NS) & (latest < FARTHEST_NS)
    if not possible.all():
        parts = _only(parts, possible)
    start_ns, end_ns = column("start"), column("end")
    backward = end_ns < start_ns
    repairs = {
        "GPU operations at impossible times (skipped)": int((~possible).sum()),
        "GPU operations that ended before they started (counted with length 0)": int(backward.sum()),
    }
    operations = Operations(
        kind=column("kind").astype(np.uint8),
        start_ns=start_ns,
        end_ns=np.maximum(start_ns, end_ns),
        process=processes.number(column("globalPid")),
        device=column("deviceId").astype(np.int32),
        stream=column("streamId"),
        correlation=column("correlationId"),
        name=column("name").astype(np.int32),
        size_bytes=column("bytes"),
        names=tuple(names),
        short_names=tuple(short_names),
        source_memory=_memory(column("srcKind")),
        target_memory=_memory(column("dstKind")),
        author=_capturing_calls(file, column("globalPid"), column("graphNodeId")) if nodes else None,
    )
    return operations, {what: count for what, count in repairs.items() if count}


def _capturing_calls(file: SqliteFile, process: I64, node: I64) -> I64:
    """Correlation ids of the calls that captured these graph nodes; -1 if unknown."""
    known = file.select("PYREC_GRAPH_NODE", {"globalPid": _NO_PROCESS, "graphNodeId": 0, "correlationId": -1})
    out = full(len(node), -1, np.int64)
    for one in unique(known["globalPid"]):
        of_one = np.flatnonzero(known["globalPid"] == one)
        of_one = of_one[np.argsort(known["graphNodeId"][of_one], kind="stable")]
        ids = known["graphNodeId"][of_one]
        rows = np.flatnonzero((process == one) & (node != 0))
        at = np.minimum(np.searchsorted(ids, node[rows]), len(ids) - 1)
        found = ids[at] == node[rows]
        out[rows[found]] = known["correlationId"][of_one[at[found]]]
    return out


def _only(parts: list[dict[str, I64]], keep: npt.NDArray[np.bool_]) -> list[dict[str, I64]]:
    """The rows to keep; `keep` is a mask over the concatenated rows of all parts."""
    ends = np.cumsum([len(part["start"]) for part in parts])
    pieces = np.split(keep, ends[:-1])
    return [
        {name: column[piece] for name, column in part.items()}
        for part, piece in zip(parts, pieces, strict=True)
    ]


def _details(kind: OperationKind, columns: tuple[str, ...]) -> dict[str, int | str]:
    if kind is OperationKind.KERNEL:
        short = "shortName" if "shortName" in columns else 0
        return {"demangledName": short, "shortName": 0, "bytes": 0} | _UNKNOWN_MEMORY
    if kind is OperationKind.SET and "memKind" in columns:
        written = f'IFNULL(CAST("memKind" AS INTEGER), {MemoryKind.UNKNOWN:d})'
        return {"copyKind": 0, "bytes": 0} | _UNKNOWN_MEMORY | {"dstKind": written}
    return {"copyKind": 0, "bytes": 0} | _UNKNOWN_MEMORY


def _memory(kinds: I64) -> U8:
    known = (kinds >= 0) & (kinds < MemoryKind.UNKNOWN)
    return np.where(known, kinds, MemoryKind.UNKNOWN).astype(np.uint8)


def _named(kind: OperationKind, rows: dict[str, I64], strings: Strings) -> tuple[I64, list[str], list[str]]:
    """The name number per row, the names, and the short names."""
    if kind is OperationKind.KERNEL:
        numbers, distinct = dense((rows["demangledName"] << 32) | (rows["shortName"] & 0xFFFFFFFF))
        pairs = [(strings[int(pair) >> 32], strings[int(pair) & 0xFFFFFFFF]) for pair in distinct]
        names = [full_name or short or "unnamed kernel" for full_name, short in pairs]
        return (
            numbers.astype(np.int64),
            names,
            [short or name for name, (_, short) in zip(names, pairs, strict=True)],
        )
    if kind is OperationKind.COPY:
        numbers, distinct = dense(rows["copyKind"])
        names = [f"memcpy {COPY_KINDS[k] if 0 <= k < len(COPY_KINDS) else k}" for k in distinct.tolist()]
        return numbers.astype(np.int64), names, names
    name = "memset" if kind is OperationKind.SET else "CUDA graph"
    return full(len(rows["start"]), 0), [name], [name]
