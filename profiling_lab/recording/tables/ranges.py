# SPDX-License-Identifier: Apache-2.0
"""NVTX_EVENTS: the program's ranges, and Python stacks in the form that nsys uses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.recording import source_text
from profiling_lab.recording.cells import call_by_number
from profiling_lab.recording.spool import NONE, PIECE_ROWS, Records, Rows, Spool, StringTable, global_tid
from profiling_lab.recording.tables import payloads
from profiling_lab.recording.tables.activity import arrow_table, int64, null_where
from profiling_lab.recording.tables.arrow_columns import numbers, of_list
from profiling_lab.recording.tables.origin_frames import with_origins

MARK, DOMAIN_CREATED = 34, 75

# nsys uses a domain with this name; its stacks are marks in it with a payload of the same name.
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


def build(spool: Spool, strings: StringTable) -> Iterator[Rows]:
    """Arrow tables of ranges, stacks and frames."""
    nodes, cut = _without_cycles(_last_of_each(spool.records["stack_nodes"]))
    if cut:
        spool.meta["stacks_cut"] = str(cut)
    nodes = with_origins(spool, nodes)
    call_by_number(spool, nodes)
    frames, frame_of_node = _frames(nodes, strings)
    yield "PYREC_FRAME", frames
    yield "PYREC_SOURCE", _source(spool, strings, nodes)
    columns = {
        "id": int64(nodes["id"]),
        "parentId": int64(nodes["parent"]),
        "frameId": frame_of_node,
        "depth": int64(nodes["depth"]),
    }
    yield "PYREC_STACK", arrow_table("PYREC_STACK", columns, len(nodes))
    yield "PYREC_HOST_EVENT", _host_events(spool, strings)
    for piece in _events(spool, strings, nodes):
        yield "NVTX_EVENTS", piece
    yield from payloads.build(spool, _stack_forms(spool)).items()


def _host_events(spool: Spool, strings: StringTable) -> Any:
    events = spool.records["host_events"]
    columns = {
        "start": spool.since_start(events["start_ns"]),
        "end": spool.since_start(events["end_ns"]),
        "globalTid": global_tid(spool.process, int64(events["thread"])),
        "nameId": strings.ids(events["text"]),
        "stackId": int64(events["stack"]),
    }
    return arrow_table("PYREC_HOST_EVENT", columns, len(events))


def _stack_forms(spool: Spool) -> list[payloads.StackForm]:
    """The domains that contain stacks in this file."""
    forms = []
    if np.any(spool.records["calls"]["stack"]):
        forms.append(payloads.StackForm(STACK_SCHEMA, STACK_DOMAIN))
    if len(spool.records["samples"]):
        forms.append(payloads.StackForm(SAMPLE_SCHEMA, sample_domain(spool)))
    return forms


def _last_of_each(nodes: Records) -> Records:
    """If a node was written twice, keep the last one."""
    _, first = np.unique(nodes["id"][::-1], return_index=True)
    last: Records = nodes[::-1][first]
    return last


def _without_cycles(nodes: Records) -> tuple[Records, int]:
    """The nodes, ordered by id, and the number of nodes that lost their callers.

    A caller's depth is one less than that of its callee. With this check, following parents always ends, even
    in a damaged or crafted capture.
    """
    from profiling_lab import _recorder

    nodes = nodes[nodes["id"] != 0]  # 0 means "no stack" and must not be a caller
    if not len(nodes):
        return nodes, 0
    at = np.minimum(np.searchsorted(nodes["id"], nodes["parent"]), len(nodes) - 1)
    known = (nodes["id"][at] == nodes["parent"]) & (nodes["depth"][at].astype(np.int64) + 1 == nodes["depth"])
    lost = (nodes["parent"] != 0) & (~known | (nodes["depth"] > _recorder.python_stacks.MAX_DEPTH))
    nodes["parent"][lost] = 0
    return nodes, int(lost.sum())


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


def _source(spool: Spool, strings: StringTable, nodes: Records) -> Any:
    """PYREC_SOURCE: the text of each line of `nodes`, as far as it is known."""
    import pyarrow as pa

    files, lines = nodes["file"].tolist(), nodes["line"].tolist()
    named = sorted({(strings.text(file), line) for file, line in zip(files, lines, strict=True)})
    known = source_text.texts(spool.meta, spool.process, named)
    columns = {
        "fileId": np.array([strings.id(file) for file, _ in known], dtype=np.int64),
        "line": np.array([line for _, line in known], dtype=np.int64),
        "text": of_list([*known.values()], pa.string()),
    }
    return arrow_table("PYREC_SOURCE", columns, len(known))


def _events(spool: Spool, strings: StringTable, nodes: Records) -> Iterator[Any]:
    """All rows by start time, in chunks: each chunk has the rows of all kinds in its time interval."""
    import pyarrow as pa

    calls, samples, ranges = (spool.records[kind] for kind in ("calls", "samples", "ranges"))
    texts = _StackTexts(strings, {int(node["id"]): node for node in nodes})
    backtrace = _Marks(spool, texts, STACK_SCHEMA, STACK_DOMAIN)
    sampling = _Marks(spool, texts, SAMPLE_SCHEMA, sample_domain(spool))
    kinds: list[tuple[Records, Records, Callable[[Records], Any]]] = [
        (ranges, ranges["start_ns"], lambda rows: _ranges(spool, strings, rows)),
        (calls, calls["start_ns"], lambda r: backtrace.table(r["start_ns"], r["thread"], r["stack"])),
        (samples, samples["time_ns"], lambda r: sampling.table(r["time_ns"], r["thread"], r["stack"])),
    ]
    named = [
        marks.domain() for marks, rows in ((backtrace, calls), (sampling, samples)) if np.any(rows["stack"])
    ]
    if named:
        yield pa.concat_tables(named)
    orders = [np.argsort(times, kind="stable") for _, times, _ in kinds]
    longest = max(range(len(kinds)), key=lambda i: len(orders[i]))
    cuts = kinds[longest][1][orders[longest][PIECE_ROWS::PIECE_ROWS]]
    limits = [
        [0, *np.searchsorted(times, cuts, sorter=order).tolist(), len(order)]
        for (_, times, _), order in zip(kinds, orders, strict=True)
    ]
    for i in range(len(cuts) + 1):
        parts = [
            make(records[order[limit[i] : limit[i + 1]]])
            for (records, _, make), order, limit in zip(kinds, orders, limits, strict=True)
        ]
        yield pa.concat_tables(parts).sort_by("start")


def _ranges(spool: Spool, strings: StringTable, r: Records) -> Any:
    import pyarrow as pa

    registered = (r["registered"] == 1) & (r["text"] != NONE)
    plain = ~registered & (r["text"] < len(spool.strings))
    texts = of_list([*spool.strings, None], pa.string()).take(
        numbers(np.where(plain, r["text"], len(spool.strings)).astype(np.int64))
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
        "binaryData": payloads.blobs(spool, r["data"]),
    }
    for number, name in _PAYLOADS.items():
        columns[name] = null_where(_payload(r["payload"], name), r["payload_type"] != number)
    return _typed(arrow_table("NVTX_EVENTS", columns, len(r)))


def _payload(bits: npt.NDArray[np.uint64], name: str) -> npt.NDArray[Any]:
    """A payload union read as one of its members."""
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
    """The domain for samples: the first unused one."""
    return max(int(spool.records["ranges"]["domain"].max(initial=0)), STACK_DOMAIN) + 1


@dataclass(frozen=True, slots=True)
class _StackTexts:
    """Stacks as JSON payloads. Each text is stored once in StringIds."""

    strings: StringTable
    node_of: dict[int, Any]
    known: dict[tuple[str, int], int] = field(default_factory=dict)

    def id(self, schema: str, stack: int) -> int:
        key = (schema, stack)
        if key not in self.known:
            self.known[key] = self.strings.id(self._json(schema, stack))
        return self.known[key]

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


@dataclass(frozen=True, slots=True)
class _Marks:
    """Stacks as marks of one domain, each at its time and on its thread."""

    spool: Spool
    texts: _StackTexts
    schema: str
    number: int

    def domain(self) -> Any:
        named = {"start": 0, "eventType": DOMAIN_CREATED, "text": self.schema, "domainId": self.number,
                 "globalTid": self.spool.global_pid}  # fmt: skip
        return _typed(arrow_table("NVTX_EVENTS", named, 1))

    def table(self, times: Records, threads: Records, stacks: Records) -> Any:
        distinct, inverse = np.unique(stacks, return_inverse=True)
        texts = np.asarray(
            [self.texts.id(self.schema, i) if i in self.texts.node_of else -1 for i in distinct.tolist()],
            dtype=np.int64,
        )[inverse.reshape(-1)]
        has_stack = texts >= 0
        columns = {
            "start": self.spool.since_start(times[has_stack]),
            "eventType": MARK,
            "color": _STACK_COLOR,
            "globalTid": global_tid(self.spool.process, int64(threads[has_stack])),
            "domainId": self.number,
            "jsonTextId": texts[has_stack],
        }
        return _typed(arrow_table("NVTX_EVENTS", columns, int(has_stack.sum())))


def _typed(table: Any) -> Any:
    """NVTX_EVENTS with the same Arrow types for all kinds of rows."""
    import pyarrow as pa

    kinds = {"doubleValue": pa.float64(), "floatValue": pa.float64(), "binaryData": pa.binary()}
    kinds |= {"text": pa.string(), "jsonText": pa.string()}

    def typed(name: str) -> Any:
        column, kind = table.column(name), kinds.get(name, pa.int64())
        # Arrow has no cast from numbers to bytes, not even for a column that is all NULL.
        is_null = column.null_count == len(column)
        return pa.chunked_array([pa.nulls(len(column), kind)]) if is_null else column.cast(kind)

    return pa.table({name: typed(name) for name in table.column_names})
