# SPDX-License-Identifier: Apache-2.0
"""NVTX_EVENTS: the user's ranges, and Python stacks in the form in which nsys writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.recording import payload_tables
from profiling_lab.recording.activity_tables import arrow_table, int64, null_where
from profiling_lab.recording.origin_frames import with_origins
from profiling_lab.recording.spool import Records, Spool, global_tid
from profiling_lab.recording.strings import NONE, StringTable

MARK, DOMAIN_CREATED = 34, 75

# nsys' injection makes a domain of this name; its stacks are marks in it with a payload of the same name.
STACK_DOMAIN = 1
STACK_SCHEMA = "Python Backtrace on CUDA"
SAMPLE_SCHEMA = "Python Periodic Sampling"
_STACK_COLOR = 4294944000

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
    nodes = with_origins(spool, _last_of_each(spool.records["stack_nodes"]))
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
        **payload_tables.build(spool, _stack_forms(spool)),
    }


def _stack_forms(spool: Spool) -> list[payload_tables.StackForm]:
    """The domains under which this file has stacks."""
    forms = []
    if np.any(spool.records["calls"]["stack"]):
        forms.append(payload_tables.StackForm(STACK_SCHEMA, STACK_DOMAIN))
    if len(spool.records["samples"]):
        forms.append(payload_tables.StackForm(SAMPLE_SCHEMA, sample_domain(spool)))
    return forms


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

    calls, samples = spool.records["calls"], spool.records["samples"]
    marks = _Marks(spool, strings, {int(node["id"]): node for node in nodes})
    tables = [
        _ranges(spool, strings),
        marks.table(STACK_SCHEMA, STACK_DOMAIN, calls["start_ns"], calls["thread"], calls["stack"]),
        marks.table(
            SAMPLE_SCHEMA, sample_domain(spool), samples["time_ns"], samples["thread"], samples["stack"]
        ),
    ]
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
        "binaryData": payload_tables.blobs(spool, r["data"]),
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


def sample_domain(spool: Spool) -> int:
    """Where samples stand: the first domain that nobody has."""
    return max(int(spool.records["ranges"]["domain"].max(initial=0)), STACK_DOMAIN) + 1


@dataclass(frozen=True, slots=True)
class _Marks:
    """Stacks as marks, each at its time and on its thread; the text of a stack stands once in StringIds."""

    spool: Spool
    strings: StringTable
    node_of: dict[int, Any]

    def table(self, schema: str, domain: int, times: Records, threads: Records, stacks: Records) -> Any:
        import pyarrow as pa

        known = np.isin(stacks, np.asarray([*self.node_of], dtype=np.uint32))
        distinct, inverse = np.unique(stacks[known], return_inverse=True)
        texts = np.asarray(
            [self.strings.id(self._json(schema, stack)) for stack in distinct.tolist()], dtype=np.int64
        )
        columns = {
            "start": self.spool.since_start(times[known]),
            "eventType": MARK,
            "color": _STACK_COLOR,
            "globalTid": global_tid(self.spool.process, int64(threads[known])),
            "domainId": domain,
            "jsonTextId": texts[inverse.reshape(-1)],
        }
        count = int(known.sum())
        table = _typed(arrow_table("NVTX_EVENTS", columns, count))
        if count == 0:
            return table
        named = {"start": 0, "eventType": DOMAIN_CREATED, "text": schema, "domainId": domain,
                 "globalTid": self.spool.global_pid}  # fmt: skip
        return pa.concat_tables([_typed(arrow_table("NVTX_EVENTS", named, 1)), table])

    def _json(self, schema: str, stack: int) -> str:
        frames = []
        while stack in self.node_of:
            node = self.node_of[stack]
            frames.append(
                {
                    "Function": self.strings.id(self.strings.text(int(node["function"]))),
                    "File": self.strings.id(self.strings.text(int(node["file"]))),
                    "Line": int(node["line"]),
                }
            )
            stack = int(node["parent"])
        payload = {
            "Thread state ID": 1,
            "Thread state": "Running",
            "Frames count": len(frames),
            "Frames": frames,
        }
        return json.dumps({schema: payload}, separators=(",", ":"))


def _typed(table: Any) -> Any:
    """NVTX_EVENTS with the same Arrow types wherever its rows come from."""
    import pyarrow as pa

    kinds = {"doubleValue": pa.float64(), "floatValue": pa.float64(), "binaryData": pa.binary()}
    kinds |= {"text": pa.string(), "jsonText": pa.string()}

    def typed(name: str) -> Any:
        column, kind = table.column(name), kinds.get(name, pa.int64())
        # No cast leads from numbers to bytes, not even of a column that is all NULL.
        is_null = column.null_count == len(column)
        return pa.chunked_array([pa.nulls(len(column), kind)]) if is_null else column.cast(kind)

    return pa.table({name: typed(name) for name in table.column_names})
