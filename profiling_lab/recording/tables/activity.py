# SPDX-License-Identifier: Apache-2.0
"""Rows about GPU work and CUDA calls: kernels, copies, memsets, synchronisation, graph nodes, overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.recording.spool import NONE, Records, Rows, Spool, StringTable, global_tid, pieces
from profiling_lab.recording.tables.arrow_columns import numbers, of_list
from profiling_lab.recording.tables.schema import column_names

# CUPTI's numbers -> nsys' numbers (its ENUM_* tables).
_MEMORY_KIND_UNKNOWN = 7
_OVERHEAD_TYPE = {1: 2, 1 << 16: 3, 2 << 16: 4, 3 << 16: 5, 4 << 16: 6, 5 << 16: 7, 6 << 16: 8}
OVERHEAD_EVENT_CLASS = 103

API_DRIVER, API_LINKED, API_BACKWARD = 1, 2, 4


def arrow_table(name: str, columns: dict[str, Any], rows: int) -> Any:
    """The columns of one table in schema order; a missing column is all NULL."""
    import pyarrow as pa

    def column(values: Any) -> Any:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return values
        if isinstance(values, np.ndarray):
            return numbers(values)
        if isinstance(values, str):
            return of_list([values] * rows, pa.string())
        return numbers(np.full(rows, values))

    unknown = set(columns) - set(column_names(name))
    assert not unknown, f"{name} has no {unknown}"
    return pa.table(
        {c: column(columns[c]) if c in columns else pa.nulls(rows, pa.int64()) for c in column_names(name)}
    )


def int64(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """SQLite's integers are signed; the bit pattern is kept."""
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)


def null_where(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_]) -> Any:
    return np.ma.masked_array(values, mask=mask)


def build(spool: Spool, strings: StringTable) -> Iterator[Rows]:
    """Arrow tables of all records of CUPTI and of the call callbacks, in chunks."""
    made_of: dict[str, tuple[str, Callable[[Spool, StringTable, Records], Any]]] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": ("kernels", _kernels),
        "CUPTI_ACTIVITY_KIND_MEMCPY": ("copies", _copies),
        "CUPTI_ACTIVITY_KIND_MEMSET": ("sets", _sets),
        "CUPTI_ACTIVITY_KIND_RUNTIME": ("calls", _calls),
        "CUPTI_ACTIVITY_KIND_OVERHEAD": ("overheads", _overheads),
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("graphs", _graphs),
        "PYREC_LAUNCH": ("calls", _launches),
    }
    for name, (kind, make) in made_of.items():
        for piece in pieces(spool.records[kind]):
            yield name, make(spool, strings, piece)
    yield "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", _syncs(spool)
    yield "PYREC_GRAPH_NODE", _graph_nodes(spool)


def _column(field: str) -> str:
    """The column of a field of a record: correlation_id -> correlationId."""
    first, *rest = field.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _same_named(table: str, records: Records) -> dict[str, Any]:
    """Every field of the records (csrc/recorder/spool/records.h) that `table` has a column for, as it is."""
    fields = {_column(field): field for field in records.dtype.names or ()}
    return {column: int64(records[fields[column]]) for column in column_names(table) if column in fields}


def _times(spool: Spool, records: Records) -> dict[str, Any]:
    return {"start": spool.since_start(records["start_ns"]), "end": spool.since_start(records["end_ns"])}


def _work(spool: Spool, table: str, records: Records, columns: dict[str, Any]) -> Any:
    """A table of GPU work: its fields as they are, but for those that `columns` has."""
    known = _same_named(table, records) | _times(spool, records)
    known |= {"greenContextId": 0, "globalPid": spool.global_pid}
    if "graphNodeId" in known:
        known["graphNodeId"] = _null_if_zero(records["graph_node_id"])
    return arrow_table(table, known | columns, len(records))


def _null_if_zero(values: npt.NDArray[Any]) -> Any:
    return null_where(int64(values), values == 0)


def _kernels(spool: Spool, strings: StringTable, k: Records) -> Any:
    from profiling_lab import _recorder

    names, inverse = np.unique(k["mangled_name"], return_inverse=True)
    mangled = [strings.text(i) for i in names.tolist()]
    demangled = [_recorder.demangle(name) for name in mangled]

    def ids(texts: list[str]) -> npt.NDArray[np.int64]:
        return np.asarray([strings.id(text) for text in texts], dtype=np.int64)[inverse.reshape(-1)]

    columns = {
        "demangledName": ids(demangled),
        "shortName": ids([_recorder.short_name(name) for name in demangled]),
        "mangledName": ids(mangled),
        "launchType": int64(k["launch_type"]) + 1,
        "graphId": _null_if_zero(k["graph_id"]),
        "tensorSizeMinusOneElements": "[]",
    }
    return _work(spool, "CUPTI_ACTIVITY_KIND_KERNEL", k, columns)


def _memory_kind(cupti: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.where(cupti == 0, _MEMORY_KIND_UNKNOWN, int64(cupti) - 1)


def _copies(spool: Spool, _: StringTable, c: Records) -> Any:
    columns = {"srcKind": _memory_kind(c["src_kind"]), "dstKind": _memory_kind(c["dst_kind"])}
    for field in ("src_device_id", "src_context_id", "dst_device_id", "dst_context_id"):
        columns[_column(field)] = null_where(int64(c[field]), c[field] == NONE)
    return _work(spool, "CUPTI_ACTIVITY_KIND_MEMCPY", c, columns)


def _sets(spool: Spool, _: StringTable, s: Records) -> Any:
    return _work(spool, "CUPTI_ACTIVITY_KIND_MEMSET", s, {"memKind": _memory_kind(s["mem_kind"])})


def _graphs(spool: Spool, _: StringTable, g: Records) -> Any:
    return _work(spool, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", g, {"graphExecId": int64(g["graph_id"])})


def _calls(spool: Spool, strings: StringTable, c: Records) -> Any:
    table = "CUPTI_ACTIVITY_KIND_RUNTIME"
    columns = {
        "eventClass": int64(c["flags"] & API_DRIVER),
        "globalTid": global_tid(spool.process, int64(c["thread"])),
        "nameId": strings.ids(c["name"]),
    }
    return arrow_table(table, _same_named(table, c) | _times(spool, c) | columns, len(c))


def _launches(spool: Spool, strings: StringTable, c: Records) -> Any:
    unlinked = (c["flags"] & API_LINKED) == 0
    forward = (c["flags"] & API_BACKWARD) == 0
    node_name = strings.ids(c["node_name"])
    columns = {
        "globalTid": global_tid(spool.process, int64(c["thread"])),
        "correlationId": int64(c["correlation_id"]),
        "stackId": int64(c["stack"]),
        "peekSeq": null_where(int64(c["peek_seq"]), unlinked),
        "nodeSeq": null_where(int64(c["node_seq"]), forward),
        "nodeFwdThread": null_where(int64(c["node_thread"]), forward),
        "selfThread": null_where(int64(c["self_thread"]), unlinked),
        "nodeNameId": null_where(node_name, node_name < 0),
        "ownNs": int64(c["own_ns"]),
    }
    return arrow_table("PYREC_LAUNCH", columns, len(c))


def _syncs(spool: Spool) -> Any:
    s = spool.records["syncs"]
    s = s[np.argsort(s["start_ns"], kind="stable")]
    device_of = {int(c["context_id"]): int(c["device_id"]) for c in spool.records["contexts"]}
    devices = [device_of.get(context, 0) for context in s["context_id"].tolist()]
    columns = {"deviceId": np.asarray(devices, dtype=np.int64), "globalPid": spool.global_pid}
    table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    return arrow_table(table, _same_named(table, s) | _times(spool, s) | columns, len(s))


def _graph_nodes(spool: Spool) -> Any:
    """Per graph node the call that captured it, if it is in the recording. Cloned nodes refer to their
    original.
    """
    rows = spool.records["graph_nodes"]
    original = dict(zip(rows["graph_node_id"].tolist(), rows["original"].tolist(), strict=True))
    made_by = dict(zip(rows["graph_node_id"].tolist(), rows["correlation_id"].tolist(), strict=True))
    recorded = set(spool.records["calls"]["correlation_id"].tolist())
    nodes, calls = [], []
    first_of: dict[int, int] = {}
    for node in original:
        source, trail = node, {node: None}
        while source not in first_of and (before := original.get(source, 0)) and before not in trail:
            trail[before] = None
            source = before
        source = first_of.get(source, source)
        first_of.update(dict.fromkeys(trail, source))
        if made_by.get(source, 0) in recorded:
            nodes.append(node)
            calls.append(made_by[source])
    columns = {
        "globalPid": spool.global_pid,
        "graphNodeId": np.array(nodes, dtype=np.uint64).view(np.int64),
        "correlationId": np.array(calls, dtype=np.int64),
    }
    return arrow_table("PYREC_GRAPH_NODE", columns, len(nodes))


def _overheads(spool: Spool, strings: StringTable, o: Records) -> Any:
    kinds = [_OVERHEAD_TYPE.get(kind, 1) for kind in o["overhead_kind"].tolist()]
    labels = {kind: strings.id(text) for kind, text in _OVERHEAD_TEXT.items() if kind in kinds}
    columns = {
        **_times(spool, o),
        "eventClass": OVERHEAD_EVENT_CLASS,
        "globalTid": global_tid(spool.process, int64(o["thread"])),
        "nameId": np.asarray([labels[kind] for kind in kinds], dtype=np.int64),
        "overheadType": np.asarray(kinds, dtype=np.int64),
    }
    return arrow_table("CUPTI_ACTIVITY_KIND_OVERHEAD", columns, len(o))


_OVERHEAD_TEXT = {
    1: "Unknown",
    2: "Driver JIT compiler",
    3: "CUPTI buffer flush",
    4: "CUPTI instrumentation",
    5: "CUPTI resource",
    6: "Runtime module loading",
    7: "Lazy function loading",
    8: "Command buffer full",
}
