# SPDX-License-Identifier: Apache-2.0
"""What a trace says of its GPUs: how much of everything one has. None stands for what it does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profiling_lab.trace.kineto.events import whole
from profiling_lab.trace.kineto.source import ChromeSource
from profiling_lab.trace.nsys.source import SqliteSource
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.operation_classes import device_tracks
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. SM: streaming multiprocessor."""

    name: str
    compute: int | None
    """compute capability, major number"""
    multiprocessors: int | None
    memory_bytes_per_s: int | None
    """of device memory, as the driver reports it"""
    warps_per_sm: int | None
    blocks_per_sm: int | None
    registers_per_sm: int | None
    shared_bytes_per_sm: int | None


_COLUMNS = {
    "computeMajor": 0,
    "smCount": 0,
    "memoryBandwidth": 0,
    "maxWarpsPerSm": 0,
    "maxBlocksPerSm": 0,
    "maxRegistersPerSm": 0,
    "maxShmemPerSm": 0,
}


def devices(trace: Trace) -> dict[tuple[int, int], Device]:
    """By (process number, CUDA ordinal) the GPUs that ran operations, as far as the file describes them."""
    _, used = device_tracks(trace.operations)
    if isinstance(trace.source, ChromeSource):
        listed = _listed(trace.source.events.devices)
        return {(process, ordinal): listed[ordinal] for process, ordinal in used if ordinal in listed}
    if not isinstance(trace.source, SqliteSource):
        return {}
    gpus = _gpus(trace.file)
    ids = _ids(trace.file)
    found = {}
    for process, ordinal in used:
        gpu = gpus.get(ids.get((trace.pids[process], ordinal), -1))
        # Without a mapping the ordinal is no help, but of GPUs that are all alike any is the one.
        if gpu is None and len(set(gpus.values())) == 1:
            gpu = next(iter(gpus.values()))
        if gpu is not None:
            found[process, ordinal] = gpu
    return found


def _gpus(file: SqliteFile) -> dict[int, Device]:
    table = next((t for t in ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU") if file.columns(t)), None)
    if table is None or "name" not in file.columns(table):
        return {}
    rows = file.select(table, {"id": -1, **_COLUMNS})
    names = [name for (name,) in file.texts(f"SELECT CAST(COALESCE(name, '') AS BLOB) FROM {table}")]
    facts = zip(*(rows[column].tolist() for column in _COLUMNS), strict=True)
    return {
        number if number >= 0 else i: Device(name, *(value if value > 0 else None for value in values))
        for i, (number, name, values) in enumerate(zip(rows["id"].tolist(), names, facts, strict=True))
    }


def _listed(properties: tuple[dict[str, Any], ...]) -> dict[int, Device]:
    """From `deviceProperties` of torch.profiler, which has the same numbers under other names."""

    def number(facts: dict[str, Any], name: str) -> int | None:
        value = whole(facts.get(name), 0)
        return value if value > 0 else None

    found = {}
    for i, facts in enumerate(properties):
        threads, warp = number(facts, "maxThreadsPerMultiprocessor"), number(facts, "warpSize")
        found[whole(facts.get("id"), i)] = Device(
            name=str(facts.get("name", "")),
            compute=number(facts, "computeMajor"),
            multiprocessors=number(facts, "numSms"),
            memory_bytes_per_s=None,
            warps_per_sm=threads // warp if threads and warp else None,
            blocks_per_sm=number(facts, "maxBlocksPerMultiProcessor"),
            registers_per_sm=number(facts, "regsPerMultiprocessor"),
            shared_bytes_per_sm=number(facts, "sharedMemPerMultiprocessor"),
        )
    return found


def _ids(file: SqliteFile) -> dict[tuple[int, int], int]:
    """Rows of TARGET_INFO_GPU by process id and CUDA ordinal."""
    if not {"gpuId", "cudaId", "pid"} <= set(file.columns("TARGET_INFO_CUDA_DEVICE")):
        return {}
    rows = file.select("TARGET_INFO_CUDA_DEVICE", {"gpuId": -1, "cudaId": -1, "pid": -1})
    return {
        (pid, ordinal): gpu
        for gpu, ordinal, pid in zip(*(rows[c].tolist() for c in ("gpuId", "cudaId", "pid")), strict=True)
    }
