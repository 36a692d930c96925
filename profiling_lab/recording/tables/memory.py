# SPDX-License-Identifier: Apache-2.0
"""PYREC_MEMORY_*: what torch's caching allocator did, from the metadata of the capture (allocations.py)."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.recording.meta_names import ALLOCATIONS
from profiling_lab.recording.spool import Ids, Rows, Spool, numbers_of
from profiling_lab.recording.tables.activity import arrow_table

_EVENT_TYPES = {
    "action": np.int8,
    "address": np.int64,
    "size": np.int64,
    "time_us": np.int64,
    "stack": np.int32,
}
_MOST_UNPACKED = 1 << 30


@dataclass(frozen=True, slots=True)
class AllocationColumns:
    """The decoded history. Its stacks are nodes of the capture."""

    known: dict[str, Any]
    stack_ids: Ids
    """by number of a stack of the history"""


def read(spool: Spool) -> AllocationColumns | None:
    """Decode the history, and add its stacks to those of the capture; None if it has none.

    A damaged history is left out, and the metadata says so: the rest of the recording does not depend on it.
    """
    text = spool.meta.get(ALLOCATIONS)
    if text is None:
        return None
    try:
        known = json.loads(text)
        for device in known["devices"]:
            events = {name: _numbers(device["events"][name], kind) for name, kind in _EVENT_TYPES.items()}
            if len({len(column) for column in events.values()}) != 1:
                raise ValueError("columns differ in length")
            device["events"] = events
            device["segments"] = np.array(device["segments"], dtype=np.int64).reshape(-1, 3)
            device["blocks"] = np.array(device["blocks"], dtype=np.int64).reshape(-1, 4)
        samples = known["samples"]
        samples["time"], samples["set"] = (_numbers(samples[name], np.int64) for name in ("time", "set"))
        for one in known["sets"]:
            one["address"], one["kind"] = _numbers(one["address"], np.int64), _numbers(one["kind"], np.int8)
        return AllocationColumns(known, _with_stacks(spool, known["frames"], known["stacks"]))
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, zlib.error) as error:
        spool.meta["memory_state"] = (
            f"the history of the allocator is damaged: {type(error).__name__}: {error}"
        )
        return None


def _numbers(text: str, kind: type) -> npt.NDArray[Any]:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b64decode(text), _MOST_UNPACKED)
    if unpacker.unconsumed_tail:
        raise ValueError("it is too large")
    return np.frombuffer(data, dtype=np.dtype(kind).newbyteorder("<")).astype(kind)


def _with_stacks(spool: Spool, frames: list[Any], stacks: list[list[int]]) -> Ids:
    """Add nodes for these stacks, given with the innermost frame first. Returns the node of each stack."""
    nodes = spool.records["stack_nodes"]
    number = numbers_of(spool.strings)
    described = [(number(str(file)), number(str(function)), int(line)) for file, function, line in frames]
    first = int(nodes["id"].max(initial=0)) + 1
    known: dict[tuple[int, int], int] = {}
    made: list[tuple[int, int, int, int]] = []  # id, parent, depth, frame
    ids = np.zeros(len(stacks), dtype=np.int64)
    for at, stack in enumerate(stacks):
        node = 0
        for depth, frame in enumerate(reversed(stack)):
            child = known.get((node, frame))
            if child is None:
                child = known[node, frame] = first + len(made)
                made.append((child, node, depth, frame))
            node = child
        ids[at] = node
    added = np.zeros(len(made), dtype=nodes.dtype)
    for row, (node, parent, depth, frame) in enumerate(made):
        file, function, line = described[frame]
        added[row]["id"], added[row]["parent"], added[row]["depth"] = node, parent, depth
        added[row]["file"], added[row]["function"], added[row]["line"] = file, function, line
    spool.records["stack_nodes"] = np.concatenate([nodes, added])
    return ids


def build(spool: Spool, allocations: AllocationColumns | None) -> Iterator[Rows]:
    """The tables, if allocations were recorded."""
    if allocations is None:
        return
    known, process = allocations.known, spool.global_pid
    for device in known["devices"]:
        where = {"globalPid": process, "deviceId": int(device["device"])}
        events = device["events"]
        yield "PYREC_MEMORY_EVENT", arrow_table("PYREC_MEMORY_EVENT", {
            **where,
            "start": events["time_us"] * 1000 - spool.start_ns,
            "action": events["action"].astype(np.int64),
            "address": events["address"],
            "bytes": events["size"],
            "stackId": allocations.stack_ids[events["stack"]],
        }, len(events["action"]))  # fmt: skip
        segments, blocks = device["segments"], device["blocks"]
        yield "PYREC_MEMORY_SEGMENT", arrow_table("PYREC_MEMORY_SEGMENT", {
            **where, "address": segments[:, 0], "bytes": segments[:, 1], "isExpandable": segments[:, 2]
        }, len(segments))  # fmt: skip
        yield "PYREC_MEMORY_BLOCK", arrow_table("PYREC_MEMORY_BLOCK", {
            **where, "address": blocks[:, 0], "bytes": blocks[:, 1], "requestedBytes": blocks[:, 2],
            "isAllocated": blocks[:, 3],
        }, len(blocks))  # fmt: skip
        names = ("allocatedPeak", "reservedPeak", "allocated", "reserved")
        yield "PYREC_MEMORY_DEVICE", arrow_table("PYREC_MEMORY_DEVICE", {
            **where,
            **dict(zip(names, map(int, device["counts"]), strict=True)),
            "mostEvents": int(known["most_events"]),
            "totalMemory": int(device["total"]),
            "settings": json.dumps(known["settings"]),
        }, 1)  # fmt: skip
    samples = known["samples"]
    yield "PYREC_MEMORY_SAMPLE", arrow_table("PYREC_MEMORY_SAMPLE", {
        "start": samples["time"] - spool.start_ns, "globalPid": process, "setId": samples["set"]
    }, len(samples["time"]))  # fmt: skip
    for number, one in enumerate(known["sets"]):
        yield "PYREC_MEMORY_TENSOR", arrow_table("PYREC_MEMORY_TENSOR", {
            "globalPid": process, "setId": number, "address": one["address"],
            "kind": one["kind"].astype(np.int64),
        }, len(one["address"]))  # fmt: skip
