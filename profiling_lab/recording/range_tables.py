# SPDX-License-Identifier: Apache-2.0
"""NVTX_EVENTS: the user's ranges, and Python stacks in the form in which nsys writes them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.recording.activity_tables import arrow_table, int64, null_where
from profiling_lab.recording.spool import Records, Spool, global_tid
from profiling_lab.recording.strings import NONE, StringTable

MARK, DOMAIN_CREATED = 34, 75

# nsys' injection makes a domain of this name; its stacks are marks in it with a payload of the same name.
STACK_DOMAIN = 1
STACK_SCHEMA = "Python Backtrace on CUDA"
_STACK_COLOR = 4294944000
_SCHEMA_ID, _FRAME_SCHEMA_ID, _STATE_ENUM_ID = 4294967301, 4294967299, 4294967300

_PAYLOADS = {
    1: "uint64Value",
    2: "int64Value",
    3: "doubleValue",
    4: "uint32Value",
    5: "int32Value",
    6: "floatValue",
}


def build(spool: Spool, strings: StringTable) -> dict[str, Any]:
    """Arrow tables of ranges, stacks and the frames behind them."""
    nodes = _last_of_each(spool.records["stack_nodes"])
    frames, frame_of_node = _frames(nodes, strings)
    return {
        "PYREC_FRAME": frames,
        "PYREC_STACK": arrow_table(
            "PYREC_STACK",
            {
                "id": int64(nodes["id"]),
                "parentId": int64(nodes["parent"]),
                "frameId": frame_of_node,
                "depth": int64(nodes["depth"]),
            },
            len(nodes),
        ),
        "NVTX_EVENTS": _events(spool, strings, nodes),
        **(_payload_schema() if len(nodes) else {}),
    }


def _last_of_each(nodes: Records) -> Records:
    """A node that was written twice counts as it was written last."""
    _, first = np.unique(nodes["id"][::-1], return_index=True)
    last: Records = nodes[::-1][first]
    return last


def _frames(nodes: Records, strings: StringTable) -> tuple[Any, npt.NDArray[np.int64]]:
    """PYREC_FRAME, and for each node the id of its frame."""
    columns = np.stack(
        [
            strings.ids(nodes["function"]),
            strings.ids(nodes["file"]),
            nodes["line"].astype(np.int64),
            nodes["first_line"].astype(np.int64),
        ],
        axis=1,
    )
    distinct, inverse = np.unique(columns, axis=0, return_inverse=True)
    names = ("functionId", "fileId", "line", "firstLine")
    table = {"id": np.arange(1, len(distinct) + 1, dtype=np.int64)}
    table |= {name: distinct[:, i] for i, name in enumerate(names)}
    return arrow_table("PYREC_FRAME", table, len(distinct)), inverse.reshape(-1).astype(np.int64) + 1


def _events(spool: Spool, strings: StringTable, nodes: Records) -> Any:
    import pyarrow as pa

    tables = [_ranges(spool, strings), _stack_marks(spool, strings, nodes)]
    events = pa.concat_tables([t for t in tables if t.num_rows] or tables[:1], promote_options="permissive")
    return events.sort_by("start")


def _ranges(spool: Spool, strings: StringTable) -> Any:
    import pyarrow as pa

    r = spool.records["ranges"]
    registered = (r["registered"] == 1) & (r["text"] != NONE)
    plain = ~registered & (r["text"] != NONE)
    texts = pa.array([*spool.strings, None], pa.string()).take(
        pa.array(np.where(plain, r["text"], len(spool.strings)).astype(np.int64))
    )
    text_ids = np.full(len(r), -1, dtype=np.int64)
    text_ids[registered] = strings.ids(r["text"][registered])
    columns: dict[str, Any] = {
        "start": np.where(r["start_ns"] == 0, 0, spool.since_start(r["start_ns"])),
        "end": null_where(spool.since_start(r["end_ns"]), r["end_ns"] == 0),
        "eventType": int64(r["type"]),
        "rangeId": null_where(int64(r["range_id"]), r["range_id"] == 0),
        "category": null_where(int64(r["category"]), r["category"] == NONE),
        "color": null_where(int64(r["color"]), r["color"] == NONE),
        "text": texts,
        "globalTid": global_tid(spool.process, int64(r["thread"])),
        "endGlobalTid": null_where(global_tid(spool.process, int64(r["end_thread"])), r["end_thread"] == 0),
        "textId": null_where(text_ids, text_ids < 0),
        "domainId": int64(r["domain"]),
    }
    for number, name in _PAYLOADS.items():
        columns[name] = null_where(_payload(r["payload"], name), r["payload_type"] != number)
    return _typed(arrow_table("NVTX_EVENTS", columns, len(r)))


def _payload(bits: npt.NDArray[np.uint64], name: str) -> npt.NDArray[Any]:
    """A payload union seen as one of its members."""
    bits = np.ascontiguousarray(bits)
    if name == "doubleValue":
        return bits.view(np.float64)
    low = (bits & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    if name == "floatValue":
        return low.view(np.float32).astype(np.float64)
    if name == "int32Value":
        return low.view(np.int32).astype(np.int64)
    return low.astype(np.int64) if name == "uint32Value" else bits.view(np.int64)


def _stack_marks(spool: Spool, strings: StringTable, nodes: Records) -> Any:
    """One mark per call with a stack, at the call's start and on its thread."""
    calls = spool.records["calls"]
    calls = calls[np.isin(calls["stack"], nodes["id"])]
    node_of = {int(node["id"]): node for node in nodes}
    distinct, inverse = np.unique(calls["stack"], return_inverse=True)
    texts = np.asarray(
        [strings.id(_stack_json(node_of, i, strings)) for i in distinct.tolist()], dtype=np.int64
    )
    columns = {
        "start": spool.since_start(calls["start_ns"]),
        "eventType": MARK,
        "color": _STACK_COLOR,
        "globalTid": global_tid(spool.process, int64(calls["thread"])),
        "domainId": STACK_DOMAIN,
        "jsonTextId": texts[inverse.reshape(-1)] if len(calls) else texts,
    }
    table = _typed(arrow_table("NVTX_EVENTS", columns, len(calls)))
    if len(calls) == 0:
        return table
    import pyarrow as pa

    domain = {"start": 0, "eventType": DOMAIN_CREATED, "text": STACK_SCHEMA, "domainId": STACK_DOMAIN,
              "globalTid": spool.global_pid}  # fmt: skip
    return pa.concat_tables([_typed(arrow_table("NVTX_EVENTS", domain, 1)), table])


def _stack_json(node_of: dict[int, Any], stack: int, strings: StringTable) -> str:
    frames = []
    while stack in node_of:
        node = node_of[stack]
        frames.append(
            {
                "Function": strings.id(strings.text(int(node["function"]))),
                "File": strings.id(strings.text(int(node["file"]))),
                "Line": int(node["line"]),
            }
        )
        stack = int(node["parent"])
    payload = {"Thread state ID": 1, "Thread state": "Running", "Frames count": len(frames), "Frames": frames}
    return json.dumps({STACK_SCHEMA: payload}, separators=(",", ":"))


def _typed(table: Any) -> Any:
    """NVTX_EVENTS with the same Arrow types wherever its rows come from."""
    import pyarrow as pa

    real, text = {"doubleValue", "floatValue"}, {"text", "jsonText", "binaryData"}
    fields = []
    for name in table.column_names:
        fields.append(
            pa.field(name, pa.float64() if name in real else pa.string() if name in text else pa.int64())
        )
    return table.cast(pa.schema(fields))


def _payload_schema() -> dict[str, Any]:
    """How a reader of nsys exports learns what the stack payload looks like."""

    def table(name: str, rows: list[dict[str, Any]]) -> Any:
        import pyarrow as pa

        from profiling_lab.recording.schema import NSYS_TABLES, column_names

        text = {c.split()[0] for c in NSYS_TABLES[name].split(",") if c.split()[1] == "TEXT"}
        types = {c: pa.string() if c in text else pa.int64() for c in column_names(name)}
        return pa.table({c: pa.array([row.get(c) for row in rows], kind) for c, kind in types.items()})

    def entry(schema: int, idx: int, kind: int, name: str, offset: int | None, **more: int) -> dict[str, Any]:
        return {"domainId": STACK_DOMAIN, "schemaId": schema, "idx": idx, "type": kind, "name": name,
                "offset": offset, **more}  # fmt: skip

    states = ("Running", "Blocking Wait", "Uninterruptible")
    return {
        "NVTX_PAYLOAD_SCHEMAS": table(
            "NVTX_PAYLOAD_SCHEMAS",
            [
                {
                    "domainId": STACK_DOMAIN,
                    "schemaId": _SCHEMA_ID,
                    "name": STACK_SCHEMA,
                    "type": 2,
                    "numEntries": 4,
                },
                {
                    "domainId": STACK_DOMAIN,
                    "schemaId": _FRAME_SCHEMA_ID,
                    "type": 1,
                    "numEntries": 3,
                    "payloadSize": 24,
                },
            ],
        ),
        "NVTX_PAYLOAD_SCHEMA_ENTRIES": table(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            [
                entry(_SCHEMA_ID, 0, 18, "Thread state ID", None),
                entry(_SCHEMA_ID, 1, _STATE_ENUM_ID, "Thread state", 8),
                entry(_SCHEMA_ID, 2, 16, "Frames count", 12),
                entry(_SCHEMA_ID, 3, _FRAME_SCHEMA_ID, "Frames", 16, flags=48, arrayOrUnionDetail=2),
                entry(_FRAME_SCHEMA_ID, 0, 80, "Function", None),
                entry(_FRAME_SCHEMA_ID, 1, 80, "File", 8),
                entry(_FRAME_SCHEMA_ID, 2, 15, "Line", 16),
            ],
        ),
        "NVTX_PAYLOAD_ENUMS": table(
            "NVTX_PAYLOAD_ENUMS",
            [{"domainId": STACK_DOMAIN, "schemaId": _STATE_ENUM_ID, "numEntries": len(states), "size": 4}],
        ),
        "NVTX_PAYLOAD_ENUM_ENTRIES": table(
            "NVTX_PAYLOAD_ENUM_ENTRIES",
            [
                {"domainId": STACK_DOMAIN, "schemaId": _STATE_ENUM_ID, "idx": i, "name": name, "value": i + 1}
                for i, name in enumerate(states)
            ],
        ),
    }
