# SPDX-License-Identifier: Apache-2.0
"""Synthetic training traces of any size in the nsys schema, with known truth.

    python benchmarks/analysis/synthetic_trace.py --events 1000000 --form nsys -o run.sqlite

A step copies a batch in, runs 24 layers of 10 operators forward and, on another thread, backward, runs the
optimizer, and waits for the loss. Every operator launches one kernel. What counts as an event: a row of the
kernel, copy, runtime and NVTX tables and, in our own form, of PYREC_LAUNCH. Forms:

    recorder  what `profiling-lab record` writes: stacks as a tree, autograd's counters, stacks as marks too
    nsys      nsys profile --python-backtrace=cuda --cudabacktrace=all:0 --pytorch=autograd-nvtx: stacks as
              JSON in every row, an extra row per call, ranges of operators with sequence numbers; without
              the native call chains
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import adbc_driver_sqlite.dbapi
import numpy as np
import pyarrow as pa

Form: TypeAlias = Literal["recorder", "nsys"]

LAYERS, OPERATORS, OPTIMIZER = 24, 10, 20
FORWARD = LAYERS * OPERATORS
LAUNCHES = 1 + 2 * FORWARD + OPTIMIZER + 1  # copy in, forward, backward, optimizer, copy out
STEPS_AT_ONCE = 400
HOST_NS, CALL_NS = 6_000, 3_000  # from one call to the next, and how long one takes

VM, PID = 1 << 48, 4711
MAIN, ENGINE = (VM | PID << 24 | PID + i for i in range(2))
MODEL, TRAIN = "/app/model.py", "/app/train.py"
COPY_IN, CALL_MODEL, BACKWARD, OPTIMIZE, LOSS = 52, 55, 58, 60, 64  # lines of TRAIN
NODES = [f"{name}Backward0" for name in (
    "NativeLayerNorm", "Addmm", "View", "ScaledDotProductFlashAttention", "Transpose", "Addmm", "Add",
    "Gelu", "Mul", "NativeDropout")]  # fmt: skip
TORCH = "/usr/lib/python3/site-packages/torch/"
LIBRARY = [("Module._wrapped_call_impl", TORCH + "nn/modules/module.py", 1775),
           ("Module._call_impl", TORCH + "nn/modules/module.py", 1786)]  # fmt: skip

_KERNEL = """
start end deviceId contextId greenContextId streamId correlationId globalPid demangledName shortName
mangledName launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ
staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId
sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone qmdPreexitDone
qmdLastCtaDone graphId clusterX clusterY clusterZ clusterSchedulingPolicy maxPotentialClusterSize
maxActiveClusters sharedMemoryRequestedPercentage
"""
KERNEL_COLUMNS = _KERNEL.split()
SCHEMA = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": ", ".join(f"{name} INTEGER" for name in KERNEL_COLUMNS)
    + ", tensorSizeMinusOneElements TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,"
    " greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER,"
    " copyKind INTEGER, deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER,"
    " srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER,"
    " graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL,"
    " eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,"
    " returnValue INTEGER NOT NULL,"
    " callchainId INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,"
    " category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,"
    " domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER,"
    " int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "TARGET_INFO_GPU": "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT,"
    " totalMemory INTEGER, memoryBandwidth INTEGER, smCount INTEGER, uuid TEXT, chipName TEXT,"
    " computeMajor INTEGER, computeMinor INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, uuid TEXT,"
    " numMultiprocessors INTEGER",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
}
OUR_SCHEMA = {
    "PYREC_FRAME": "id INTEGER PRIMARY KEY, functionId INTEGER, fileId INTEGER, line INTEGER,"
    " firstLine INTEGER",
    "PYREC_STACK": "id INTEGER PRIMARY KEY, parentId INTEGER, frameId INTEGER, depth INTEGER",
    "PYREC_LAUNCH": "globalTid INTEGER, correlationId INTEGER, stackId INTEGER, peekSeq INTEGER,"
    " nodeSeq INTEGER, nodeFwdThread INTEGER, selfThread INTEGER, nodeNameId INTEGER",
    "PYREC_META": "name TEXT, value TEXT",
}

Frame = tuple[str, str, int]
Columns = dict[str, Any]


@dataclass(frozen=True)
class Truth:
    """What every tool must find. Times are nanoseconds; a line is `file:line`."""

    form: Form
    events: int
    steps: int
    kernels: int
    gpu_ns: int
    busy_ns: int
    span_ns: int
    lines: dict[str, list[int]]
    """per line: forward_ns, backward_ns, operations"""
    kernel_names: dict[str, list[int]]
    """per kernel: total_ns, launches"""


@dataclass(frozen=True)
class Plan:
    """One step: a row per launch, in the order of the host. Rows of `stacks` are outermost first."""

    line: list[str]
    backward: np.ndarray
    node: np.ndarray  # row of the forward operator; -1 for what made no node and evaluates none
    stack: np.ndarray  # row of stacks, -1 on the engine's thread
    kernel: np.ndarray  # row of kernel_names, -1 for a copy
    mean_ns: np.ndarray
    stacks: list[tuple[Frame, ...]]
    kernel_names: list[str]


def plan() -> Plan:
    stacks: list[tuple[Frame, ...]] = []
    line: list[str] = []
    rows: list[tuple[bool, int, int, int, int]] = []  # backward, node, stack, kernel, mean_ns
    names = [f"void kernel_{i}<float, {i}, 128>(at::native::Operator{i}, float const*, float*)"
             for i in range(2 * OPERATORS + 1)]  # fmt: skip

    def add(
        where: tuple[Frame, ...], *, backward: bool = False, node: int = -1, kernel: int = -1, mean: int
    ) -> None:
        own = [frame for frame in where if frame[1] in (MODEL, TRAIN)][-1]
        line.append(f"{own[1]}:{own[2]}")
        if where not in stacks:
            stacks.append(where)
        rows.append((backward, node, -1 if backward else stacks.index(where), kernel, mean))

    def in_train(number: int) -> Frame:
        return ("main", TRAIN, number)

    forward = [
        (in_train(CALL_MODEL), *LIBRARY, ("Model.forward", MODEL, 30 + layer), *LIBRARY,
         ("Block.forward", MODEL, 100 + operator), *LIBRARY, ("forward", TORCH + "nn/modules/linear.py", 134))
        for layer in range(LAYERS) for operator in range(OPERATORS)
    ]  # fmt: skip
    add((in_train(COPY_IN),), mean=40_000)
    for i, where in enumerate(forward):
        add(where, node=i, kernel=i % OPERATORS, mean=1_000 + 780 * (i % OPERATORS))
    for i in reversed(range(FORWARD)):
        mean_ns = 1_500 + 890 * (i % OPERATORS)
        add(forward[i], backward=True, node=i, kernel=OPERATORS + i % OPERATORS, mean=mean_ns)
    for _ in range(OPTIMIZER):
        add((in_train(OPTIMIZE), ("step", TORCH + "optim/adamw.py", 250)), kernel=2 * OPERATORS, mean=9_000)
    add((in_train(LOSS),), mean=1_500)
    backward, node, stack, kernel, mean = (np.array(column) for column in zip(*rows, strict=True))
    return Plan(line, backward.astype(bool), node, stack, kernel, mean, stacks, names)


def events_per_step(form: Form) -> int:
    calls, with_stack = LAUNCHES + 1, LAUNCHES + 1 - FORWARD
    if form == "recorder":
        return LAUNCHES + 2 * calls + with_stack + LAYERS + 4
    return LAUNCHES + 2 * calls + with_stack + 3 * FORWARD + 4


class Writer:
    """Appends to the tables of a new file; ids of strings are given as they come."""

    def __init__(self, path: Path, form: Form) -> None:
        path.unlink(missing_ok=True)
        schema = SCHEMA | (OUR_SCHEMA if form == "recorder" else {})
        with sqlite3.connect(path) as file:
            for table, columns in schema.items():
                file.execute(f"CREATE TABLE {table} ({columns})")
        file.close()
        self._file = adbc_driver_sqlite.dbapi.connect(str(path))
        self._strings: dict[str, int] = {}

    def string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings) + 1)

    def strings(self, texts: list[str]) -> np.ndarray:
        return np.array([self.string(text) for text in texts], dtype=np.int64)

    def append(self, table: str, columns: Columns) -> None:
        """Columns are arrays, or one value for all rows."""
        size = max(len(c) for c in columns.values() if isinstance(c, (np.ndarray, pa.Array, list)))
        arrays = {
            name: pa.array(c) if isinstance(c, (np.ndarray, list)) else c if isinstance(c, pa.Array)
            else pa.repeat(pa.scalar(c, pa.int64() if not isinstance(c, str) else None), size)
            for name, c in columns.items()
        }  # fmt: skip
        with self._file.cursor() as cursor:
            cursor.adbc_ingest(table, pa.table(arrays), mode="append")

    def close(self) -> None:
        self.append("StringIds", {"id": [*self._strings.values()], "value": [*self._strings]})
        self._file.commit()
        self._file.close()


def write_trace(path: Path, events: int, form: Form, seed: int = 0, slow: float = 1.0) -> Truth:
    """Write about `events` events (whole steps) and give the truth. `slow` lengthens the kernels of the
    operator at model.py:105, forward and backward.
    """
    step = plan()
    steps = max(1, round(events / events_per_step(form)))
    writer = Writer(path, form)
    facts = _facts(writer, step, form, steps)
    dice = np.random.default_rng(seed)
    mean_ns = np.where(step.node % OPERATORS == 5, step.mean_ns * slow, step.mean_ns)
    total, count = np.zeros(LAUNCHES, dtype=np.int64), steps
    now_ns, gpu_free_ns, first_ns, counted = 1_000_000, 0, None, 0
    for first in range(0, steps, STEPS_AT_ONCE):
        some = min(STEPS_AT_ONCE, steps - first)
        host = _host(dice, some, now_ns)
        now_ns = int(host[-1, -1]) + 200_000
        duration = (mean_ns * dice.gamma(40.0, 1 / 40.0, (some, LAUNCHES))).astype(np.int64) + 500
        launched = host[:, :-1].ravel() + CALL_NS
        before = np.cumsum(duration) - duration.ravel()
        begun = np.maximum(np.maximum.accumulate(launched - before), gpu_free_ns)
        start = begun + before
        gpu_free_ns = int(start[-1] + duration[-1, -1])
        first_ns = int(start[0]) if first_ns is None else first_ns
        total += duration.sum(axis=0)
        counted += _write_steps(writer, step, facts, form, first, host, start, duration.ravel())
    writer.close()
    lines: dict[str, list[int]] = {}
    for i, name in enumerate(step.line):
        row = lines.setdefault(name, [0, 0, 0])
        row[int(step.backward[i])] += int(total[i])
        row[2] += count
    kernels = {
        name: [int(total[step.kernel == k].sum()), int((step.kernel == k).sum()) * count]
        for k, name in enumerate(step.kernel_names)
    }
    gpu_ns = int(total.sum())
    return Truth(form, counted, steps, count * int((step.kernel >= 0).sum()), gpu_ns, gpu_ns,
                 gpu_free_ns - (first_ns or 0), lines, kernels)  # fmt: skip


def _host(dice: np.random.Generator, steps: int, now_ns: int) -> np.ndarray:
    """When each call of each step starts; the last one waits for the GPU."""
    between = dice.integers(HOST_NS - 1_500, HOST_NS + 1_500, (steps, LAUNCHES + 1))
    between[:, 0] += 150_000  # loading a batch
    return np.asarray(now_ns + np.cumsum(between.ravel()).reshape(steps, -1), dtype=np.int64)


def _facts(writer: Writer, step: Plan, form: Form, steps: int) -> dict[str, np.ndarray]:
    """The small tables, and the ids of names, stacks and payloads per launch of a step (the wait last)."""
    writer.append("PROCESSES", {"globalPid": [VM | PID << 24], "pid": PID, "name": "python3"})
    writer.append("ThreadNames", {"nameId": writer.strings(["python3", "pt_autograd_0"]), "priority": 20,
                                  "globalTid": [MAIN, ENGINE]})  # fmt: skip
    writer.append("TARGET_INFO_GPU", {
        "vmId": [1], "id": 0, "name": "NVIDIA H200", "busLocation": "0000:19:00.0", "chipName": "GH100",
        "memoryBandwidth": 4_800_000_000_000, "smCount": 132, "totalMemory": 150_000_000_000,
        "computeMajor": 9, "computeMinor": 0})  # fmt: skip
    writer.append("TARGET_INFO_CUDA_DEVICE",
                  {"gpuId": [0], "cudaId": 0, "pid": PID, "numMultiprocessors": 132})  # fmt: skip
    product = "profiling_lab synthetic" if form == "recorder" else "NVIDIA Nsight Systems"
    export = {
        "EXPORT_SCHEMA_VERSION": "3.25.0",
        "EXPORT_PRODUCT_NAME": product,
        "SYNTHETIC_STEPS": str(steps),
    }
    writer.append("META_DATA_EXPORT", {"name": [*export], "value": [*export.values()]})
    marks = ["Python Backtrace on CUDA"]
    writer.append(
        "NVTX_EVENTS", {"start": [0], "eventType": 75, "text": marks, "globalTid": MAIN, "domainId": 1}
    )
    stack = np.append(step.stack, step.stack[-1])
    frames: dict[Frame, int] = {}
    nodes: dict[tuple[int, int], int] = {}
    ids = []
    for where in step.stacks:
        node = 0
        for frame in where:
            number = frames.setdefault(frame, len(frames) + 1)
            node = nodes.setdefault((node, number), len(nodes) + 1)
        ids.append(node)
    if form == "recorder":
        writer.append("PYREC_FRAME", {
            "id": [*frames.values()], "functionId": writer.strings([f[0] for f in frames]),
            "fileId": writer.strings([f[1] for f in frames]), "line": [f[2] for f in frames], "firstLine": 1,
        })  # fmt: skip
        writer.append("PYREC_STACK", {"id": [*nodes.values()], "parentId": [p for p, _ in nodes],
                                      "frameId": [f for _, f in nodes], "depth": 0})  # fmt: skip
        writer.append("PYREC_META", {"name": ["recorder_version", "stacks_state", "autograd_link"],
                                     "value": ["synthetic", "on", "on"]})  # fmt: skip
    texts = [_payload(writer, where) for where in step.stacks]
    if form == "recorder":
        payload_id = writer.strings(texts)
    names = writer.strings(step.kernel_names)
    short = writer.strings([name[len("void ") : name.index("<")] for name in step.kernel_names])
    calls = writer.strings(["cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020"])
    chained = writer.strings(["cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize"])
    kind = np.append((step.kernel < 0).astype(int), 2)
    node_names = writer.strings(NODES)
    return {
        "stack": np.where(stack >= 0, np.array(ids)[stack], 0),
        "payload": np.array(texts, dtype=object)[stack] if form == "nsys" else payload_id[stack],
        "has_stack": stack >= 0,
        "name": names[step.kernel],
        "short": short[step.kernel],
        "call": calls[kind],
        "chained": chained[kind],
        "node_name": node_names[np.append(step.node, 0) % OPERATORS],
        "node": np.append(step.node, -1),
        "tid": np.where(np.append(step.backward, False), ENGINE, MAIN),
        "backward": np.append(step.backward, False),
    }


def _payload(writer: Writer, where: tuple[Frame, ...]) -> str:
    frames = [{"Function": writer.string(f), "File": writer.string(p), "Line": n} for f, p, n in where[::-1]]
    payload = {"Thread state ID": 1, "Thread state": "Running", "Frames count": len(frames), "Frames": frames}
    return json.dumps({"Python Backtrace on CUDA": payload}, separators=(",", ":"))


def _write_steps(
    writer: Writer, step: Plan, facts: dict[str, np.ndarray], form: Form, first: int, host: np.ndarray,
    start: np.ndarray, duration: np.ndarray,
) -> int:  # fmt: skip
    """Append the rows of these steps and count them. Rows lie in the order of time."""
    steps = len(host)
    calls = LAUNCHES + 1
    begun = host.ravel()

    def each(fact: np.ndarray) -> np.ndarray:
        return np.tile(fact, steps)

    correlation = np.arange(first * calls, (first + steps) * calls, dtype=np.int64) + 1
    launches = correlation.reshape(steps, calls)[:, :-1].ravel()
    is_copy = each(step.kernel < 0)
    operation: Columns = {"start": start, "end": start + duration, "correlationId": launches}
    shared = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": VM | PID << 24}
    more = {name: 1 for name in KERNEL_COLUMNS[10:25]}
    kernels = {name: column[~is_copy] for name, column in operation.items()}
    kernels |= {"demangledName": each(facts["name"])[~is_copy], "shortName": each(facts["short"])[~is_copy]}
    writer.append("CUPTI_ACTIVITY_KIND_KERNEL", kernels | shared | more | {"tensorSizeMinusOneElements": ""})
    copies = {name: column[is_copy] for name, column in operation.items()} | shared
    batch_in = np.tile([True, False], steps)
    writer.append("CUPTI_ACTIVITY_KIND_MEMCPY", copies | {
        "bytes": np.where(batch_in, 1 << 20, 4), "copyKind": np.where(batch_in, 1, 2), "srcKind":
        np.where(batch_in, 1, 2), "dstKind": np.where(batch_in, 2, 0), "copyCount": 1})  # fmt: skip

    done = (start + duration)[LAUNCHES - 1 :: LAUNCHES] + 2_000
    ended = begun + CALL_NS
    ended[calls - 1 :: calls] = np.clip(done, ended[calls - 1 :: calls], ended[calls - 1 :: calls] + 100_000)
    api: Columns = {"start": begun, "end": ended, "eventClass": np.zeros(len(begun), dtype=np.int64),
                    "globalTid": each(facts["tid"]), "correlationId": correlation,
                    "nameId": each(facts["call"]), "returnValue": 0}  # fmt: skip
    if form == "nsys":
        extra = {"start": begun - 200, "end": ended + 200, "eventClass": np.full(len(begun), 67),
                 "nameId": each(facts["chained"])}  # fmt: skip
        both = {name: np.column_stack([extra.get(name, column), column]).ravel()
                for name, column in api.items() if name != "returnValue"}  # fmt: skip
        both["returnValue"] = 0
        writer.append("CUPTI_ACTIVITY_KIND_RUNTIME", both)
    else:
        writer.append("CUPTI_ACTIVITY_KIND_RUNTIME", api)
        _write_launches(writer, facts, first, steps, correlation)
    marks = _marks(facts, form, steps, begun)
    ranges = _ranges(step, facts, form, first, host)
    order = np.argsort(np.concatenate([marks["start"], ranges["start"]]), kind="stable")
    nothing = {"end": None, "text": None, "jsonText": None, "jsonTextId": None}
    merged: Columns = {}
    for name in (
        "start",
        "end",
        "eventType",
        "color",
        "text",
        "globalTid",
        "domainId",
        "jsonText",
        "jsonTextId",
    ):
        parts = [part.get(name, nothing.get(name, 0)) for part in (marks, ranges)]
        sizes = (len(marks["start"]), len(ranges["start"]))
        text = pa.string() if name in ("text", "jsonText") else pa.int64()
        arrays = [pa.array(p, type=text) if isinstance(p, np.ndarray) else pa.repeat(pa.scalar(p, text), n)
                  for p, n in zip(parts, sizes, strict=True)]  # fmt: skip
        merged[name] = pa.concat_arrays(arrays).take(pa.array(order))
    writer.append("NVTX_EVENTS", merged)
    twice = 2 if form == "nsys" else 1
    ours = len(begun) if form == "recorder" else 0
    return len(start) + twice * len(begun) + ours + len(order)


def _write_launches(
    writer: Writer, facts: dict[str, np.ndarray], first: int, steps: int, correlation: np.ndarray
) -> None:
    number = np.repeat(np.arange(first, first + steps, dtype=np.int64), LAUNCHES + 1)
    node, backward = np.tile(facts["node"], steps), np.tile(facts["backward"], steps)
    made = node >= 0
    done = np.tile(np.arange(LAUNCHES + 1) > FORWARD, steps)
    peek = number * FORWARD + np.where(made & ~backward, node + 1, np.where(done, FORWARD, 0))
    null = ~backward

    def sparse(values: np.ndarray, mask: np.ndarray) -> pa.Array:
        return pa.array(values, mask=mask, type=pa.int64())

    writer.append("PYREC_LAUNCH", {
        "globalTid": np.tile(facts["tid"], steps), "correlationId": correlation,
        "stackId": np.tile(facts["stack"], steps), "peekSeq": np.where(backward, 0, peek),
        "nodeSeq": sparse(number * FORWARD + node, null), "nodeFwdThread": sparse(np.ones(len(node)), null),
        "selfThread": np.where(backward, 2, 1),
        "nodeNameId": sparse(np.tile(facts["node_name"], steps), null),
    })  # fmt: skip


def _marks(facts: dict[str, np.ndarray], form: Form, steps: int, begun: np.ndarray) -> dict[str, np.ndarray]:
    has = np.tile(facts["has_stack"], steps)
    start = begun[has] - (200 if form == "nsys" else 0)
    marks = {"start": start, "eventType": np.full(len(start), 34), "globalTid": np.full(len(start), MAIN),
             "domainId": np.ones(len(start), dtype=np.int64),
             "color": np.full(len(start), 4294944000)}  # fmt: skip
    column = "jsonText" if form == "nsys" else "jsonTextId"
    return marks | {column: np.tile(facts["payload"], steps)[has]}


def _ranges(
    step: Plan, facts: dict[str, np.ndarray], form: Form, first: int, host: np.ndarray
) -> dict[str, np.ndarray]:
    """The step, its three parts, and its layers or its operators."""
    steps = len(host)
    number = range(first, first + steps)
    last = host[:, -1] + CALL_NS
    turn, tune = 1 + FORWARD, 1 + 2 * FORWARD
    parts: list[tuple[np.ndarray, np.ndarray, list[str], int]] = [
        (host[:, 0] - 1_000, last + 1_000, [f"step {n}" for n in number], MAIN),
        (host[:, 1] - 600, host[:, turn] - 600, ["forward"] * steps, MAIN),
        (host[:, turn] - 500, host[:, tune] - 900, ["backward"] * steps, MAIN),
        (host[:, tune] - 800, host[:, -1] - 900, ["optimizer"] * steps, MAIN),
    ]
    if form == "recorder":
        for layer in range(LAYERS):
            at = 1 + layer * OPERATORS
            until = host[:, at + OPERATORS - 1] + CALL_NS + 300
            parts.append((host[:, at] - 400, until, [f"layer_{layer}"] * steps, MAIN))
    else:
        sequence = np.arange(first * FORWARD, (first + steps) * FORWARD).reshape(steps, FORWARD)
        for i in range(FORWARD):
            node = NODES[i % OPERATORS]
            at, back = 1 + i, turn + FORWARD - 1 - i
            name = f"aten::{node.removesuffix('Backward0').lower()}"
            numbers = sequence[:, i].tolist()
            parts.append((host[:, at] - 300, host[:, at] + CALL_NS + 300,
                          [f"{name}, seq = {n}, op_id = {3 * n}" for n in numbers], MAIN))  # fmt: skip
            evaluate = f"autograd::engine::evaluate_function: {node}"
            parts.append((host[:, back] - 400, host[:, back] + CALL_NS + 400,
                          [f"{evaluate}, op_id = {3 * n + 1}" for n in numbers], ENGINE))  # fmt: skip
            parts.append((host[:, back] - 300, host[:, back] + CALL_NS + 300,
                          [f"{node}, seq = {n}, op_id = {3 * n + 2}" for n in numbers], ENGINE))  # fmt: skip
    size = steps * len(parts)
    return {
        "start": np.concatenate([part[0] for part in parts]),
        "end": np.concatenate([part[1] for part in parts]),
        "eventType": np.full(size, 59),
        "text": np.concatenate([np.array(part[2], dtype=object) for part in parts]),
        "globalTid": np.repeat([part[3] for part in parts], steps),
    }


def cached(folder: Path, events: int, form: Form, seed: int = 0, slow: float = 1.0) -> tuple[Path, Truth]:
    """The file and its truth, written if it is not there yet."""
    path = folder / f"synthetic_{form}_{events}_{seed}_{slow:g}.sqlite"
    note = path.with_suffix(".truth.json")
    if not note.exists():
        note.write_text(json.dumps(asdict(write_trace(path, events, form, seed, slow))))
    return path, Truth(**json.loads(note.read_text()))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--form", choices=("recorder", "nsys"), default="recorder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", type=float, default=1.0, help="how many times longer one operator takes")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    print(
        json.dumps(asdict(write_trace(args.output, args.events, args.form, args.seed, args.slow)), indent=1)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
