# SPDX-License-Identifier: Apache-2.0
"""The recordings of a job of any number of ranks with known truth, as `profiling-lab record` writes them.

A step is LAYERS times some kernels and an all-reduce in which all ranks wait for the last; then the host
waits for the GPU. One rank computes EXTRA_NS longer per layer, at SLOW_LINE; others differ by a per mille.
Few recordings are written: ranks that do the same share one by hard links, and the names of the files say the
ranks. Each is read as a file of its own, but from memory, not from a disk.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from synthetic_trace import KERNEL_COLUMNS, MAIN, PID, VM, Writer

LAYERS, KERNELS = 24, 20
PER_STEP = LAYERS * (KERNELS + 1)
EVENTS_PER_STEP = 3 * PER_STEP + 2
"""of a launch a row of the kernel table, of the runtime's and of PYREC_LAUNCH; the wait, the step's range"""
DIFFERENT = 7
"""recordings that are written of the ranks without a fault"""
KERNEL_NS, TRANSFER_NS, EXTRA_NS = 8_000, 20_000, 30_000
LAYER_NS = KERNELS * KERNEL_NS + EXTRA_NS + TRANSFER_NS
GAIN_NS = LAYERS * EXTRA_NS
"""what mending the slow rank wins per step"""
BEGIN_NS, CALL_NS, APART_NS, LATENCY_NS, RETURN_NS = 1_000_000, 2_000, 2_500, 4_000, 3_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
MODEL, SLOW_NUMBER, REDUCE_NUMBER = "/app/model.py", 42, 90
SLOW_LINE = f"{MODEL}:{SLOW_NUMBER}"


@dataclass(frozen=True)
class RankJob:
    files: tuple[str, ...]
    slow: int
    """the rank with the fault"""
    events: int
    """of one rank"""
    steps: int
    file_bytes: int
    """of one rank"""


def write_job(folder: Path, ranks: int, events: int) -> RankJob:
    """Write a job of about `events` events per rank, in whole steps, into an empty folder."""
    steps = max(round(events / EVENTS_PER_STEP), 4)
    slow, few = ranks // 3, min(DIFFERENT, ranks)
    sources, job = folder / "written", folder / "job"
    sources.mkdir(parents=True)
    job.mkdir()
    written = [_write(sources / f"{i}.sqlite", i, steps, 0) for i in range(few)]
    written.append(_write(sources / "slow.sqlite", few, steps, EXTRA_NS))
    files = [job / f"run.rank{rank}.sqlite" for rank in range(ranks)]
    for rank, path in enumerate(files):
        os.link(written[-1] if rank == slow else written[rank % few], path)
    each = written[0].stat().st_size
    return RankJob(tuple(map(str, files)), slow, steps * EVENTS_PER_STEP, steps, each)


def _write(path: Path, seed: int, steps: int, extra_ns: int) -> Path:
    """One recording. Within a step the GPU never waits for the host."""
    dice = np.random.default_rng(seed)
    ns = np.empty((steps, LAYERS, KERNELS + 1), dtype=np.int64)
    ns[..., :-1] = KERNEL_NS - dice.integers(0, 9, (steps, LAYERS, KERNELS))
    ns[..., -2] += extra_ns
    ns[..., -1] = LAYER_NS - ns[..., :-1].sum(axis=-1)  # all ranks leave together
    ns = ns.reshape(steps, PER_STEP)
    begin = BEGIN_NS + np.arange(steps, dtype=np.int64) * (LAYERS * LAYER_NS + LATENCY_NS + RETURN_NS)
    ends = (begin + LATENCY_NS)[:, None] + np.cumsum(ns, axis=1)
    calls = begin[:, None] + np.arange(PER_STEP, dtype=np.int64) * APART_NS
    waits, count = calls[:, -1] + APART_NS, ns.size
    correlation = np.arange(count + steps, dtype=np.int64) + 1
    launched, waited = correlation[:count], correlation[count:]

    writer = Writer(path, "recorder")
    stacks = _facts(writer, [*range(30, 30 + KERNELS - 1), SLOW_NUMBER, REDUCE_NUMBER])
    short = [*(f"gemm_{i}" for i in range(5)), ALL_REDUCE]
    names = [*(f"void {name}<float, 128>(float*)" for name in short[:-1]), f"{ALL_REDUCE}(ncclArgs)"]
    place = np.append(np.arange(KERNELS) % 5, 5)

    def each(of_layer: np.ndarray) -> np.ndarray:
        return np.tile(of_layer, steps * LAYERS)

    kernels = {
        "start": (ends - ns).ravel(),
        "end": ends.ravel(),
        "correlationId": launched,
        "streamId": each(np.append(np.full(KERNELS, 7), 20)),
        "demangledName": each(writer.strings(names)[place]),
        "shortName": each(writer.strings(short)[place]),
        "tensorSizeMinusOneElements": "",
    } | {"deviceId": 0, "contextId": 1, "globalPid": VM | PID << 24}
    writer.append("CUPTI_ACTIVITY_KIND_KERNEL", kernels | {name: 1 for name in KERNEL_COLUMNS[10:25]})
    for name, start, end, correlations in (
        ("cudaLaunchKernel_v7000", calls.ravel(), calls.ravel() + CALL_NS, launched),
        ("cudaStreamSynchronize_v3020", waits, ends[:, -1] + RETURN_NS // 2, waited),
    ):
        about = {"eventClass": 0, "globalTid": MAIN, "nameId": writer.string(name), "returnValue": 0}
        times = {"start": start, "end": end, "correlationId": correlations}
        writer.append("CUPTI_ACTIVITY_KIND_RUNTIME", times | about)
    launches = {"correlationId": launched, "stackId": each(stacks), "globalTid": MAIN, "peekSeq": 0}
    writer.append("PYREC_LAUNCH", launches)
    text = pa.array([f"step {i}" for i in range(steps)])
    ranges = {"start": begin - 500, "end": ends[:, -1] + RETURN_NS - 1_000, "text": text}
    writer.append("NVTX_EVENTS", ranges | {"eventType": 59, "globalTid": MAIN, "domainId": 0})
    writer.close()
    return path


def _facts(writer: Writer, lines: list[int]) -> np.ndarray:
    """The small tables; gives the id of the stack of each line."""
    writer.append("PROCESSES", {"globalPid": [VM | PID << 24], "pid": PID, "name": "python3"})
    export = {"EXPORT_SCHEMA_VERSION": "3.25.0", "EXPORT_PRODUCT_NAME": "profiling_lab synthetic"}
    facts = {"recorder_version": "synthetic", "stacks_state": "on", "autograd_link": "on"}
    for table, values in (("META_DATA_EXPORT", export), ("PYREC_META", facts)):
        writer.append(table, {"name": [*values], "value": [*values.values()]})
    ids = np.arange(len(lines), dtype=np.int64) + 1
    where = {"functionId": writer.string("forward"), "fileId": writer.string(MODEL), "firstLine": 1}
    writer.append("PYREC_FRAME", {"id": ids, "line": np.array(lines)} | where)
    writer.append("PYREC_STACK", {"id": ids, "parentId": 0, "frameId": ids, "depth": 0})
    return ids
