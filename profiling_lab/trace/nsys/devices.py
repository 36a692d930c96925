# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a file in the nsys schema."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from profiling_lab.trace.columns import I64
from profiling_lab.trace.extras import Device
from profiling_lab.trace.facts import Gpu
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.process_ids import Registry, pid_of

_COLUMNS = {
    "computeMajor": 0,
    "smCount": 0,
    "memoryBandwidth": 0,
    "maxWarpsPerSm": 0,
    "maxBlocksPerSm": 0,
    "maxRegistersPerSm": 0,
    "maxShmemPerSm": 0,
}


def read_devices(
    file: SqliteFile, processes: Registry, used: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], Device]:
    """By (process number, CUDA ordinal) the GPUs in use, as far as the file describes them."""
    gpus, ids = _gpus(file), _ids(file)
    found = {}
    for process, ordinal in used:
        gpu = gpus.get(ids.get((pid_of(processes.ids[process]), ordinal), -1))
        # Without a mapping the ordinal is useless, but if all GPUs are equal, any of them can be used.
        if gpu is None and len(set(gpus.values())) == 1:
            gpu = next(iter(gpus.values()))
        if gpu is not None:
            found[process, ordinal] = gpu
    return found


def read_gpus(file: SqliteFile) -> tuple[Gpu, ...]:
    """The GPUs of the machine, as far as the file describes them."""
    facts, names = _described(file, {"computeMajor": 0, "computeMinor": 0, "smCount": 0, "totalMemory": 0})
    return tuple(
        Gpu(name, f"{major}.{minor}" if major else "", sms, memory)
        for name, major, minor, sms, memory in zip(
            names, *(facts[key].tolist() for key in facts), strict=True
        )
    )


def _gpus(file: SqliteFile) -> dict[int, Device]:
    rows, names = _described(file, {"id": -1, **_COLUMNS})
    facts = zip(*(rows[column].tolist() for column in _COLUMNS), strict=True)
    return {
        number if number >= 0 else i: Device(name, *(value if value > 0 else None for value in values))
        for i, (number, name, values) in enumerate(zip(rows["id"].tolist(), names, facts, strict=True))
    }


def _described(file: SqliteFile, wanted: dict[str, int | str]) -> tuple[dict[str, I64], list[str]]:
    """The columns of the GPU table, and the GPU names; empty if there is no such table."""
    table = next((t for t in ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU") if file.columns(t)), None)
    if table is None or "name" not in file.columns(table):
        return {name: np.empty(0, dtype=np.int64) for name in wanted}, []
    names = file.texts(f"SELECT CAST(COALESCE(name, '') AS BLOB) FROM {table}")
    return file.select(table, wanted), [name for (name,) in names]


def _ids(file: SqliteFile) -> dict[tuple[int, int], int]:
    """Rows of TARGET_INFO_GPU by process id and CUDA ordinal."""
    if not {"gpuId", "cudaId", "pid"} <= set(file.columns("TARGET_INFO_CUDA_DEVICE")):
        return {}
    rows = file.select("TARGET_INFO_CUDA_DEVICE", {"gpuId": -1, "cudaId": -1, "pid": -1})
    return {
        (pid, ordinal): gpu
        for gpu, ordinal, pid in zip(*(rows[c].tolist() for c in ("gpuId", "cudaId", "pid")), strict=True)
    }
