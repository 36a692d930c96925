# SPDX-License-Identifier: Apache-2.0
"""Rows about GPU work and CUDA calls: kernels, copies, memsets, synchronisation, graph nodes, overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.recording.spool import Records, Rows, Spool, global_tid, pieces
from profiling_lab.recording.tables.schema import column_names
from profiling_lab.recording.tables.strings import NONE, StringTable

# CUPTI's numbers -> nsys' numbers (its ENUM_* tables).
_MEMORY_KIND_UNKNOWN = 7
_OVERHEAD_TYPE = {1: 2, 1 << 16: 3, 2 << 16: 4, 3 << 16: 5, 4 << 16: 6, 5 << 16: 7, 6 << 16: 8}
_OVERHEAD_EVENT_CLASS = 103

API_DRIVER, API_LINKED, API_BACKWARD = 1, 2, 4


def arrow_table(name: str, columns: dict[str, Any], rows: int) -> Any:
    """The columns of one table in schema order; a missing column is all NULL."""
    import pyarrow as pa

    def column(values: Any) -> Any:
        if isinstance(values, pa.Array):
            return values
        if isinstance(values, np.ma.MaskedArray):
            return pa.array(np.ascontiguousarray(values.data), mask=np.ma.getmaskarray(values))
        if isinstance(values, np.ndarray):
            return pa.array(np.ascontiguousarray(values))
        return pa.array([values] * rows)

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


def _work(spool: Spool, records: Records) -> dict[str, Any]:
    """The columns shared by all GPU work."""
    return {
        "start": spool.since_start(records["start_ns"]),
        "end": spool.since_start(records["end_ns"]),
        "deviceId": int64(records["device"]),
        "contextId": int64(records["context"]),
        "greenContextId": 0,
        "streamId": int64(records["stream"]),
        "correlationId": int64(records["correlation"]),
        "globalPid": spool.global_pid,
    }


def _null_if_zero(values: npt.NDArray[Any]) -> Any:
    return null_where(int64(values), values == 0)


def _kernels(spool: Spool, strings: StringTable, k: Records) -> Any:
    from profiling_lab import _recorder

    names, inverse = np.unique(k["name"], return_inverse=True)
    mangled = [strings.text(i) for i in names.tolist()]
    demangled = [_recorder.demangle(name) for name in mangled]

    def ids(texts: list[str]) -> npt.NDArray[np.int64]:
        return np.asarray([strings.id(text) for text in texts], dtype=np.int64)[inverse.reshape(-1)]

    columns = _work(spool, k) | {
        "demangledName": ids(demangled),
        "shortName": ids([_recorder.short_name(name) for name in demangled]),
        "mangledName": ids(mangled),
        "launchType": int64(k["launch_type"]) + 1,
        "cacheConfig": int64(k["cache_config"]),
        "registersPerThread": int64(k["registers"]),
        "staticSharedMemory": int64(k["static_shared"]),
        "dynamicSharedMemory": int64(k["dynamic_shared"]),
        "localMemoryPerThread": int64(k["local_per_thread"]),
        "localMemoryTotal": int64(k["local_total"]),
        "gridId": int64(k["grid_id"]),
        "sharedMemoryExecuted": int64(k["shared_executed"]),
        "graphNodeId": _null_if_zero(k["graph_node"]),
        "sharedMemoryLimitConfig": int64(k["shared_limit"]),
        "graphId": _null_if_zero(k["graph"]),
        "clusterSchedulingPolicy": int64(k["cluster_scheduling"]),
        "maxPotentialClusterSize": int64(k["max_potential_cluster"]),
        "maxActiveClusters": int64(k["max_active_clusters"]),
        "tensorSizeMinusOneElements": "[]",
    }
    for axis in "xyz":
        columns[f"grid{axis.upper()}"] = int64(k[f"grid_{axis}"])
        columns[f"block{axis.upper()}"] = int64(k[f"block_{axis}"])
        columns[f"cluster{axis.upper()}"] = int64(k[f"cluster_{axis}"])
    return arrow_table("CUPTI_ACTIVITY_KIND_KERNEL", columns, len(k))


def _memory_kind(cupti: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.where(cupti == 0, _MEMORY_KIND_UNKNOWN, int64(cupti) - 1)


def _copies(spool: Spool, _: StringTable, c: Records) -> Any:
    columns = _work(spool, c) | {
        "bytes": int64(c["bytes"]),
        "copyKind": int64(c["copy_kind"]),
        "srcKind": _memory_kind(c["source_kind"]),
        "dstKind": _memory_kind(c["destination_kind"]),
        "graphNodeId": _null_if_zero(c["graph_node"]),
        "copyCount": int64(c["count"]),
    }
    for ours, theirs in {"source": "src", "destination": "dst"}.items():
        for what in ("device", "context"):
            values = c[f"{ours}_{what}"]
            columns[f"{theirs}{what.capitalize()}Id"] = null_where(int64(values), values == NONE)
    return arrow_table("CUPTI_ACTIVITY_KIND_MEMCPY", columns, len(c))


def _sets(spool: Spool, _: StringTable, s: Records) -> Any:
    columns = _work(spool, s) | {
        "value": int64(s["value"]),
        "bytes": int64(s["bytes"]),
        "graphNodeId": _null_if_zero(s["graph_node"]),
        "memKind": _memory_kind(s["memory_kind"]),
    }
    return arrow_table("CUPTI_ACTIVITY_KIND_MEMSET", columns, len(s))


def _graphs(spool: Spool, _: StringTable, g: Records) -> Any:
    columns = _work(spool, g) | {"graphId": int64(g["graph"]), "graphExecId": int64(g["graph"])}
    return arrow_table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", columns, len(g))


def _calls(spool: Spool, strings: StringTable, c: Records) -> Any:
    columns = {
        "start": spool.since_start(c["start_ns"]),
        "end": spool.since_start(c["end_ns"]),
        "eventClass": int64(c["flags"] & API_DRIVER),
        "globalTid": global_tid(spool.process, int64(c["thread"])),
        "correlationId": int64(c["correlation"]),
        "nameId": strings.ids(c["name"]),
        "returnValue": int64(c["return_value"]),
    }
    return arrow_table("CUPTI_ACTIVITY_KIND_RUNTIME", columns, len(c))


def _launches(spool: Spool, strings: StringTable, c: Records) -> Any:
    unlinked = (c["flags"] & API_LINKED) == 0
    forward = (c["flags"] & API_BACKWARD) == 0
    node_name = strings.ids(c["node_name"])
    columns = {
        "globalTid": global_tid(spool.process, int64(c["thread"])),
        "correlationId": int64(c["correlation"]),
        "stackId": int64(c["stack"]),
        "peekSeq": null_where(int64(c["peek_seq"]), unlinked),
        "nodeSeq": null_where(int64(c["node_seq"]), forward),
        "nodeFwdThread": null_where(int64(c["node_thread"]), forward),
        "selfThread": null_where(int64(c["self_thread"]), unlinked),
        "nodeNameId": null_where(node_name, node_name < 0),
    }
    return arrow_table("PYREC_LAUNCH", columns, len(c))


def _syncs(spool: Spool) -> Any:
    s = spool.records["syncs"]
    s = s[np.argsort(s["start_ns"], kind="stable")]
    device_of = {int(c["context"]): int(c["device"]) for c in spool.records["contexts"]}
    columns = {
        "start": spool.since_start(s["start_ns"]),
        "end": spool.since_start(s["end_ns"]),
        "deviceId": np.asarray([device_of.get(c, 0) for c in s["context"].tolist()], dtype=np.int64),
        "contextId": int64(s["context"]),
        "streamId": int64(s["stream"]),
        "correlationId": int64(s["correlation"]),
        "globalPid": spool.global_pid,
        "syncType": int64(s["type"]),
        "eventId": int64(s["event"]),
    }
    return arrow_table("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", columns, len(s))


def _graph_nodes(spool: Spool) -> Any:
    """Per graph node the call that captured it, if it is in the recording. Cloned nodes refer to their
    original.
    """
    rows = spool.records["graph_nodes"]
    original = dict(zip(rows["node"].tolist(), rows["original"].tolist(), strict=True))
    made_by = dict(zip(rows["node"].tolist(), rows["correlation"].tolist(), strict=True))
    recorded = set(spool.records["calls"]["correlation"].tolist())
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
    kinds = [_OVERHEAD_TYPE.get(kind, 1) for kind in o["kind"].tolist()]
    labels = {kind: strings.id(text) for kind, text in _OVERHEAD_TEXT.items() if kind in kinds}
    columns = {
        "start": spool.since_start(o["start_ns"]),
        "end": spool.since_start(o["end_ns"]),
        "eventClass": _OVERHEAD_EVENT_CLASS,
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
