# SPDX-License-Identifier: Apache-2.0
"""The history of torch's caching allocator, as our recorder stores it with `record --memory`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from profiling_lab.trace.columns import FARTHEST_NS, I64, unique
from profiling_lab.trace.memory_history import (
    Action,
    AllocatorSettings,
    KnownTensors,
    MemoryHistory,
    Segments,
    TensorKind,
    TorchCounts,
    UsedBlocks,
    sane_sizes,
)
from profiling_lab.trace.nsys.recorder_stacks import has_recorder_stacks, stack_rows
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.process_ids import Registry, process_part

_EVENT: dict[str, int | str] = {
    "start": 0,
    "globalPid": 0,
    "deviceId": 0,
    "action": -1,
    "address": 0,
    "bytes": 0,
    "stackId": 0,
}
_COUNTS = ("allocatedPeak", "reservedPeak", "allocated", "reserved")

Columns = Mapping[str, I64]


def read_memory_history(file: SqliteFile, processes: Registry) -> tuple[MemoryHistory, ...]:
    """One history per process and device that the recorder describes, even if nothing happened on it."""
    if not file.columns("PYREC_MEMORY_DEVICE"):
        return ()
    wanted: dict[str, int | str] = {
        "globalPid": 0,
        "deviceId": 0,
        "mostEvents": 0,
        "totalMemory": 0,
        **dict.fromkeys(_COUNTS, -1),
    }
    devices = file.select("PYREC_MEMORY_DEVICE", wanted)
    settings = _settings(file)
    events = _rows(file, "PYREC_MEMORY_EVENT", _EVENT)
    segments = _rows(
        file, "PYREC_MEMORY_SEGMENT",
        {"globalPid": 0, "deviceId": 0, "address": 0, "bytes": 0, "isExpandable": 0},
    )  # fmt: skip
    blocks = _rows(
        file, "PYREC_MEMORY_BLOCK",
        {"globalPid": 0, "deviceId": 0, "address": 0, "bytes": 0, "requestedBytes": 0, "isAllocated": 0},
    )  # fmt: skip
    tensors = _tensors(file)
    stack = stack_rows(file)(events["stackId"]) if has_recorder_stacks(file) else events["stackId"] * 0
    known_action = (events["action"] >= 0) & (events["action"] < len(Action))
    process = processes.number(process_part(devices["globalPid"]))
    out = []
    for row in range(len(process)):
        pid, device = int(devices["globalPid"][row]), int(devices["deviceId"][row])
        mine = np.flatnonzero(_of(events, pid, device) & known_action)
        held, used = _of(segments, pid, device), _of(blocks, pid, device)
        counts = [int(devices[name][row]) for name in _COUNTS]
        out.append(
            MemoryHistory(
                process=int(process[row]),
                device=device,
                action=events["action"][mine].astype(np.uint8),
                address=events["address"][mine],
                size=sane_sizes(events["bytes"][mine]),
                time_ns=np.maximum.accumulate(np.clip(events["start"][mine], -FARTHEST_NS, FARTHEST_NS)),
                stack=stack[mine].astype(np.int32),
                segments=Segments(
                    segments["address"][held],
                    sane_sizes(segments["bytes"][held]),
                    segments["isExpandable"][held] != 0,
                ),
                blocks=UsedBlocks(
                    blocks["address"][used],
                    sane_sizes(blocks["bytes"][used]),
                    sane_sizes(blocks["requestedBytes"][used]),
                    blocks["isAllocated"][used] != 0,
                ),
                settings=settings.get((pid, device), AllocatorSettings()),
                tensors=tensors.get(pid, KnownTensors.none()),
                most_events=int(devices["mostEvents"][row]),
                counts=None if min(counts) < 0 else TorchCounts(*counts),
                total_bytes=int(devices["totalMemory"][row]) or None,
            )
        )
    return tuple(out)


def _rows(file: SqliteFile, table: str, wanted: dict[str, int | str]) -> Columns:
    """The rows of a table in their order; none if the file has no such table."""
    if not file.columns(table):
        return {name: np.empty(0, np.int64) for name in wanted}
    return file.select(table, wanted)


def _of(rows: Columns, pid: int, device: int) -> Any:
    return (rows["globalPid"] == pid) & (rows["deviceId"] == device)


def _settings(file: SqliteFile) -> dict[tuple[int, int], AllocatorSettings]:
    query = (
        "SELECT CAST(CAST(IFNULL(globalPid, 0) AS INTEGER) AS TEXT), "
        "CAST(CAST(IFNULL(deviceId, 0) AS INTEGER) AS TEXT), "
        "CAST(IFNULL(settings, '') AS BLOB) FROM PYREC_MEMORY_DEVICE"
    )
    import json  # few files have a history

    out = {}
    for pid, device, text in file.texts(query):
        try:
            known = json.loads(text)
        except ValueError:
            known = {}
        out[int(pid), int(device)] = AllocatorSettings.of(known if isinstance(known, dict) else {})
    return out


def _tensors(file: SqliteFile) -> dict[int, KnownTensors]:
    """By process what the recorder saw of tensors."""
    samples = _rows(file, "PYREC_MEMORY_SAMPLE", {"start": 0, "globalPid": 0, "setId": 0})
    tensors = _rows(file, "PYREC_MEMORY_TENSOR", {"globalPid": 0, "setId": -1, "address": 0, "kind": -1})
    out = {}
    for pid in unique(samples["globalPid"]).tolist():
        known = (tensors["kind"] >= 0) & (tensors["kind"] < len(TensorKind))
        mine, when = (tensors["globalPid"] == pid) & known, samples["globalPid"] == pid
        out[pid] = KnownTensors(
            samples["start"][when],
            samples["setId"][when].astype(np.int32),
            tensors["setId"][mine].astype(np.int32),
            tensors["address"][mine],
            tensors["kind"][mine].astype(np.uint8),
        )
    return out
