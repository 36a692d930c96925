# SPDX-License-Identifier: Apache-2.0
"""Allocations of GPU memory, as nsys records them with --cuda-memory-usage=true."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import MemoryKind
from profiling_lab.trace.extras import MemoryEvents
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.process_ids import Registry, process_part

_ON_THE_GPU = (MemoryKind.DEVICE, MemoryKind.MANAGED, MemoryKind.DEVICE_STATIC, MemoryKind.MANAGED_STATIC)


def read_memory(file: SqliteFile, processes: Registry) -> MemoryEvents | None:
    table = file.newest("CUDA_GPU_MEMORY_USAGE_EVENTS")
    if table is None:
        return None
    wanted: dict[str, int | str] = {
        "start": 0,
        "globalPid": 0,
        "deviceId": 0,
        "bytes": 0,
        "memKind": int(MemoryKind.DEVICE),
        "memoryOperationType": 0,
    }
    rows = file.select(table, wanted)
    on_the_gpu = np.isin(rows["memKind"], _ON_THE_GPU)
    rows = {name: column[on_the_gpu] for name, column in rows.items()}
    return MemoryEvents(
        process=processes.number(process_part(rows["globalPid"])),
        device=rows["deviceId"],
        time_ns=rows["start"],
        change_bytes=np.where(rows["memoryOperationType"] == 1, -rows["bytes"], rows["bytes"]),
        held_bytes=None,
    )
