# SPDX-License-Identifier: Apache-2.0
"""Operations, calls and ranges from the records of rocprofv3."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from profiling_lab.trace.call_stacks import CallTable, StacksFound, unknown_facts
from profiling_lab.trace.columns import (
    I32,
    I64,
    NO_SEQUENCE,
    U8,
    Calls,
    MemoryKind,
    OperationKind,
    Operations,
    Ranges,
    dense,
    full,
)
from profiling_lab.trace.extras import LaunchShape, LaunchShapes, MemoryEvents, Style
from profiling_lab.trace.kernel_names import base_name
from profiling_lab.trace.process_ids import Registry
from profiling_lab.trace.rocprof.records import Records, Table
from profiling_lab.trace.stacks import no_stacks

_DIRECTION = re.compile(r"MEMORY_COPY_(HOST|DEVICE)_TO_(HOST|DEVICE)$")
_LETTER = {"HOST": "H", "DEVICE": "D"}
_BACKWARD = "GPU operations that ended before they started (counted with length 0)"
_LARGEST = (1 << 31) - 1


def read_operations(records: Records, processes: Registry) -> tuple[Operations, dict[str, int]]:
    kernels, copies = records.kernels, records.copies
    n, m = len(kernels["start"]), len(copies["start"])
    start_ns, end_ns = _both(kernels, copies, "start"), _both(kernels, copies, "end")
    process = _both(kernels, copies, "process")
    correlation = launching_calls(records, process, _both(kernels, copies, "correlation"))
    names, number = _operation_names(records)
    gpu = _copying_gpu(records)
    operations = Operations(
        kind=np.repeat(np.array([OperationKind.KERNEL, OperationKind.COPY], dtype=np.uint8), [n, m]),
        start_ns=start_ns,
        end_ns=np.maximum(start_ns, end_ns),
        process=processes.number(process),
        device=_device_numbers(records, process, np.concatenate([kernels["agent"], gpu])),
        stream=_streams(kernels, copies),
        correlation=correlation,
        name=number,
        size_bytes=np.concatenate([np.zeros(n, dtype=np.int64), np.maximum(copies["size_bytes"], 0)]),
        names=names,
        short_names=tuple(base_name(name) for name in names),
        source_memory=_memory(records, n, "source"),
        target_memory=_memory(records, n, "target"),
    )
    backward = int((end_ns < start_ns).sum())
    return operations, {_BACKWARD: backward} if backward else {}


def launching_calls(records: Records, process: I64, correlation: I64) -> I64:
    """The correlation ids of HIP calls. An operation may name the HSA call that was made inside of one."""
    regions = records.regions
    hsa = np.flatnonzero(~_is_call(records) & _named(records, "HSA") & (regions["ancestor"] > 0))
    out = correlation.copy()
    if not len(hsa):
        return out
    inside = {
        (p, inner): outer
        for p, inner, outer in zip(
            *(regions[name][hsa].tolist() for name in ("process", "correlation", "ancestor")), strict=True
        )
    }
    for row, key in enumerate(zip(process.tolist(), correlation.tolist(), strict=True)):
        seen = set()
        while key in inside and key not in seen:
            seen.add(key)
            key = (key[0], inside[key])
        out[row] = key[1]
    return out


def read_calls(records: Records, processes: Registry, threads: Registry) -> CallTable:
    """The calls of the HIP API, or those of HSA if the file has no others. rocprofv3 records no stacks."""
    rows = np.flatnonzero(_is_call(records))
    table = {name: column[rows] for name, column in records.regions.items()}
    name, used = dense(table["name"])
    nothing = unknown_facts(len(rows))
    calls = Calls(
        start_ns=table["start"],
        end_ns=np.maximum(table["start"], table["end"]),
        process=processes.number(table["process"]),
        thread=threads.number(table["thread"]),
        correlation=table["correlation"],
        name=name,
        names=tuple(records.texts[i] for i in used.tolist()),
        stack=nothing.stack,
        next_sequence=nothing.next_sequence,
        node_sequence=nothing.node_sequence,
        counter=nothing.counter,
        node_counter=nothing.node_counter,
        node_name=nothing.node_name,
        node_names=(),
        traits=np.zeros(len(rows), dtype=np.uint8),
        own_ns=nothing.own_ns,
    )
    return CallTable(calls, no_stacks(), StacksFound("", 0, 0, 0))


def read_ranges(records: Records, processes: Registry, threads: Registry) -> Ranges:
    """ROCTx ranges in the default domain; calls of RCCL and other libraries in one of their own."""
    rows = range_rows(records)
    table = {name: column[rows] for name, column in records.regions.items()}
    name, used = dense(table["name"])
    category, categories = dense(table["category"])
    texts = [_text(records, i) for i in categories.tolist()]
    domain = np.array([0 if _is_marker(text) else i + 1 for i, text in enumerate(texts)] or [0])
    return Ranges(
        start_ns=table["start"],
        end_ns=np.maximum(table["start"], table["end"]),
        process=processes.number(table["process"]),
        thread=threads.number(table["thread"]),
        name=name,
        names=tuple(_text(records, i) for i in used.tolist()),
        sequence=full(len(rows), NO_SEQUENCE),
        evaluates=np.zeros(len(rows), dtype=np.uint8),
        domain=domain[category] if len(rows) else np.empty(0, dtype=np.int64),
        domains={i + 1: text for i, text in enumerate(texts) if not _is_marker(text)},
        stack=np.zeros(len(rows), dtype=np.int32),
    )


def range_styles(records: Records) -> U8:
    """Ranges that one thread pushes and pops; a range of the process may end on another thread."""
    kind, used = dense(records.regions["kind"][range_rows(records)])
    texts = [_text(records, i) for i in used.tolist()]
    apart = [text.startswith(("roctxProcessRange", "roctxRangeStart")) for text in texts]
    styles = np.where(apart or [False], Style.START_END, Style.PUSH_POP).astype(np.uint8)
    return styles[kind]


def range_rows(records: Records) -> npt.NDArray[np.intp]:
    """Rows of the ranges: no calls of HIP or HSA, and no marks, which have no length."""
    marks = _by_text(records, "kind", lambda text: text.startswith("roctxMark"))
    return np.flatnonzero(~_named(records, "HIP") & ~_named(records, "HSA") & ~marks)


def read_launch_shapes(records: Records) -> LaunchShapes | None:
    """rocprofv3 counts the work-items of a grid, not its workgroups."""
    kernels = records.kernels
    count, copies = len(kernels["start"]), len(records.copies["start"])
    if not count:
        return None
    columns = [kernels[f"{what}_{axis}"] for what in ("grid", "block") for axis in "xyz"]
    table = np.stack([*columns, kernels["registers"], kernels["shared_bytes"]], axis=1)
    distinct, number = np.unique(np.clip(table, -1, _LARGEST), axis=0, return_inverse=True)
    shapes = []
    for *extents, registers, shared in distinct.tolist():
        (gx, gy, gz), (bx, by, bz) = extents[:3], [max(extent, 1) for extent in extents[3:]]
        grid = (max(-(-gx // bx), 1), max(-(-gy // by), 1), max(-(-gz // bz), 1))
        shapes.append(
            LaunchShape(
                grid, (bx, by, bz), registers if registers > 0 else None, shared if shared >= 0 else None
            )
        )
    rows = np.concatenate([number.reshape(-1), full(copies, -1)]).astype(np.int32)
    return LaunchShapes(rows, tuple(shapes))


def read_memory(records: Records, processes: Registry) -> MemoryEvents | None:
    """Allocations and frees of GPU memory; a free names the address alone."""
    table = records.allocations
    order = np.argsort(table["time"], kind="stable")
    held: dict[tuple[int, int], tuple[int, int]] = {}
    rows: list[tuple[int, int, int, int]] = []
    columns = ("time", "process", "agent", "address", "size_bytes", "is_free")
    for time, process, agent, address, size, is_free in zip(
        *(table[name][order].tolist() for name in columns), strict=True
    ):
        if is_free:
            agent, size = held.pop((process, address), (-1, 0))
        else:
            held[process, address] = agent, size
        known = records.agents.get((process, agent))
        if known is not None and known.is_gpu and size:
            rows.append((time, process, known.logical_node_type_id, -size if is_free else size))
    if not rows:
        return None
    time_ns, process_id, device, change = np.array(rows, dtype=np.int64).T
    return MemoryEvents(processes.number(process_id.copy()), device, time_ns, change, None)


def _copying_gpu(records: Records) -> I64:
    """The agent of a copy: the GPU that it writes, else the one that it reads."""
    copies = records.copies
    target_is_gpu = _are_gpus(records, copies["process"], copies["target"])
    return np.where(target_is_gpu, copies["target"], copies["source"])


def _both(kernels: Table, copies: Table, name: str) -> I64:
    return np.concatenate([kernels[name], copies[name]])


def _streams(kernels: Table, copies: Table) -> I64:
    """HIP streams; hardware queues in a file without streams."""
    streams = _both(kernels, copies, "stream")
    return np.maximum(streams if (streams > 0).any() else _both(kernels, copies, "queue"), 0)


def _operation_names(records: Records) -> tuple[tuple[str, ...], I32]:
    """The names of operations, and the number per operation."""
    kernel, used = dense(records.kernels["name"])
    names = [_text(records, i) or "unnamed kernel" for i in used.tolist()]
    copies = records.copies
    other = (copies["source"] != copies["target"]).astype(np.int64)
    copy, pairs = dense(copies["name"] << 1 | other)
    names += [_copy_name(_text(records, pair >> 1), bool(pair & 1)) for pair in pairs.tolist()]
    return tuple(names), np.concatenate([kernel, copy + np.int32(len(used))]).astype(np.int32)


def _copy_name(text: str, between_agents: bool) -> str:
    """`MEMORY_COPY_HOST_TO_DEVICE` is `memcpy HtoD`, as in the other formats."""
    match = _DIRECTION.search(text)
    if match is None:
        return "memcpy unknown"
    direction = f"{_LETTER[match[1]]}to{_LETTER[match[2]]}"
    return "memcpy PtoP" if direction == "DtoD" and between_agents else f"memcpy {direction}"


def _memory(records: Records, kernels: int, side: str) -> U8:
    """Memory of GPUs is known; whether the host's is pinned, rocprofv3 does not record."""
    on_gpu = _are_gpus(records, records.copies["process"], records.copies[side])
    kinds = np.where(on_gpu, MemoryKind.DEVICE, MemoryKind.UNKNOWN)
    return np.concatenate([full(kernels, MemoryKind.UNKNOWN), kinds]).astype(np.uint8)


def _are_gpus(records: Records, process: I64, agent: I64) -> npt.NDArray[np.bool_]:
    number, keys = _pairs(process, agent)
    known = (records.agents.get(key) for key in keys)
    flags = np.array([a is not None and a.is_gpu for a in known] or [False], dtype=bool)
    return np.asarray(flags[number])


def _device_numbers(records: Records, process: I64, agent: I64) -> I32:
    """Numbers of GPUs as HIP counts them; of an unknown agent its id."""
    number, keys = _pairs(process, agent)
    known = ((records.agents.get(key), key[1]) for key in keys)
    values = [a.logical_node_type_id if a else key for a, key in known]
    return np.clip(np.array(values or [0], dtype=np.int64), -1, _LARGEST).astype(np.int32)[number]


def _pairs(process: I64, agent: I64) -> tuple[I32, list[tuple[int, int]]]:
    one, processes = dense(process)
    two, agents = dense(agent)
    number, distinct = dense(one.astype(np.int64) << 32 | two)
    keys = [(int(processes[pair >> 32]), int(agents[pair & 0xFFFFFFFF])) for pair in distinct.tolist()]
    return number, keys


def _is_call(records: Records) -> npt.NDArray[np.bool_]:
    hip = _named(records, "HIP")
    return hip if hip.any() else _named(records, "HSA")


def _named(records: Records, api: str) -> npt.NDArray[np.bool_]:
    """Per region, whether its category is one of this API: `HIP_RUNTIME_API`, `rocm_hip_api`."""
    return _by_text(records, "category", lambda text: bool(re.search(rf"(^|_){api}_", text.upper())))


def _is_marker(category: str) -> bool:
    return "MARKER" in category.upper()


def _by_text(records: Records, column: str, matches: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    number, used = dense(records.regions[column])
    flags = np.array([matches(_text(records, i)) for i in used.tolist()] or [False], dtype=bool)
    return np.asarray(flags[number])


def _text(records: Records, number: int) -> str:
    return records.texts[number] if 0 <= number < len(records.texts) else ""
