# SPDX-License-Identifier: Apache-2.0
"""Operating system activity of threads: blocking calls, and time off the CPU."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import dense, full
from profiling_lab.trace.extras import HostSpans
from profiling_lab.trace.nsys.recorder_stacks import stack_rows
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.nsys.strings import Strings
from profiling_lab.trace.process_ids import Registry, process_part


def read_system_calls(
    file: SqliteFile, strings: Strings, processes: Registry, threads: Registry
) -> HostSpans:
    table = file.newest("OSRT_API")
    if table is None:
        return HostSpans.none()
    rows = file.select(table, {"start": 0, "end": 0, "globalTid": 0, "nameId": 0})
    name, ids = dense(rows["nameId"])
    return HostSpans(
        start_ns=rows["start"],
        end_ns=np.maximum(rows["start"], rows["end"]),
        process=processes.number(process_part(rows["globalTid"])),
        thread=threads.number(rows["globalTid"]),
        name=name,
        names=tuple(strings[i] for i in ids.tolist()),
        stack=full(len(name), 0, np.int32),
    )


def read_off_cpu(file: SqliteFile, processes: Registry, threads: Registry) -> HostSpans:
    table = file.newest("SCHED_EVENTS")
    if table is None:
        return HostSpans.none()
    rows = file.select(table, {"start": 0, "isSchedIn": 1, "globalTid": 0})
    process = processes.number(process_part(rows["globalTid"]))
    thread = threads.number(rows["globalTid"])
    order = np.lexsort((rows["start"], thread))
    out = (rows["isSchedIn"][order][:-1] == 0) & (rows["isSchedIn"][order][1:] != 0)
    out &= thread[order][:-1] == thread[order][1:]
    left = order[:-1][out]
    return HostSpans(
        start_ns=rows["start"][left],
        end_ns=rows["start"][order[1:][out]],
        process=process[left],
        thread=thread[left],
        name=full(len(left), 0, np.int32),
        names=("",),
        stack=full(len(left), 0, np.int32),
    )


def read_host_events(file: SqliteFile, strings: Strings, processes: Registry, threads: Registry) -> HostSpans:
    """Garbage collections and compilations, from our recorder."""
    if not file.columns("PYREC_HOST_EVENT"):
        return HostSpans.none()
    rows = file.select("PYREC_HOST_EVENT", {"start": 0, "end": 0, "globalTid": 0, "nameId": 0, "stackId": 0})
    name, ids = dense(rows["nameId"])
    return HostSpans(
        start_ns=rows["start"],
        end_ns=np.maximum(rows["start"], rows["end"]),
        process=processes.number(process_part(rows["globalTid"])),
        thread=threads.number(rows["globalTid"]),
        name=name,
        names=tuple(strings[i] for i in ids.tolist()),
        stack=stack_rows(file)(rows["stackId"]),
    )
