# SPDX-License-Identifier: Apache-2.0
"""Rows about the machine, the process and the recording. Never the environment or program arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import numpy as np

from profiling_lab.recording.meta_names import GPU_INFO, PROCESS_NAME, SYSTEM_INFO, is_in_the_meta_table
from profiling_lab.recording.spool import VIRTUAL_MACHINE, Rows, Spool, StringTable, global_tid
from profiling_lab.recording.tables.activity import arrow_table, int64, null_where
from profiling_lab.recording.tables.arrow_columns import of_list
from profiling_lab.recording.tables.schema import NSYS_SCHEMA_VERSION, NSYS_TABLES, column_names
from profiling_lab.recording.windows import OPEN_END, windows

_THREAD_PRIORITY = 20
_UNKNOWN_STREAM_TYPE = 0
_DIAGNOSTIC_FROM_INJECTION, _TARGET_TIMESTAMP = 1, 1
_DRIVER_VERSION_ENUM, _ARCHITECTURE_ENUM, _CORES_ENUM, _OS_ENUM = 205, 3, 1, 605


def build(spool: Spool, strings: StringTable) -> Iterator[Rows]:
    """Arrow tables of everything except the events."""
    tables = {
        "ThreadNames": _thread_names(spool, strings),
        "PROCESSES": _rows(
            "PROCESSES",
            [
                {
                    "globalPid": spool.global_pid,
                    "pid": spool.process,
                    "name": spool.meta.get(PROCESS_NAME, "python"),
                }
            ],
        ),
        **_gpus(spool),
        "TARGET_INFO_CUDA_CONTEXT_INFO": _contexts(spool),
        "TARGET_INFO_CUDA_STREAM": _streams(spool),
        **_session(spool),
        "TARGET_INFO_SYSTEM_ENV": _system(spool),
        "DIAGNOSTIC_EVENT": _diagnostics(spool, strings),
        "META_DATA_CAPTURE": _pairs("META_DATA_CAPTURE", _capture_meta(spool)),
        "META_DATA_EXPORT": _pairs("META_DATA_EXPORT", _export_meta()),
        "PYREC_WINDOW": _windows(spool),
        "PYREC_RESOURCE": _resources(spool, strings),
        "PYREC_META": _pairs("PYREC_META", _own_meta(spool)),
    }
    yield from tables.items()


def _rows(name: str, rows: list[dict[str, Any]]) -> Any:
    """An Arrow table from dicts, typed by the schema so that empty columns are typed too."""
    import pyarrow as pa

    kinds = {c.split()[0]: c.split()[1] for c in NSYS_TABLES[name].split(",")}
    types = {column: pa.string() if kinds[column] == "TEXT" else pa.int64() for column in column_names(name)}
    return pa.table(
        {column: of_list([row.get(column) for row in rows], kind) for column, kind in types.items()}
    )


def _pairs(name: str, pairs: list[tuple[str, str]]) -> Any:
    import pyarrow as pa

    return pa.table(
        {
            "name": of_list([n for n, _ in pairs], pa.string()),
            "value": of_list([v for _, v in pairs], pa.string()),
        }
    )


def _windows(spool: Spool) -> Any:
    rows = windows(spool)
    columns = {
        "start": spool.since_start(rows["start_ns"]),
        "end": null_where(spool.since_start(rows["end_ns"]), rows["end_ns"] == OPEN_END),
        "firstStep": null_where(int64(rows["step"]), rows["step"] < 0),
    }
    return arrow_table("PYREC_WINDOW", columns, len(rows))


def _resources(spool: Spool, strings: StringTable) -> Any:
    r = spool.records["resources"]
    names = strings.ids(r["name"])
    columns = {
        "globalPid": spool.global_pid,
        "domainId": int64(r["domain"]),
        "type": int64(r["type"]),
        "identifier": int64(r["identifier"]),
        "nameId": null_where(names, names < 0),
    }
    return arrow_table("PYREC_RESOURCE", columns, len(r))


def _thread_names(spool: Spool, strings: StringTable) -> Any:
    threads = spool.records["threads"]
    last = {int(t["thread"]): int(t["name"]) for t in threads}  # the program's name comes last
    rows = [
        {"nameId": strings.id(strings.text(name)), "priority": _THREAD_PRIORITY,
         "globalTid": global_tid(spool.process, thread)}
        for thread, name in sorted(last.items())
    ]  # fmt: skip
    return _rows("ThreadNames", rows)


def _gpus(spool: Spool) -> dict[str, Any]:
    gpus = json.loads(spool.meta.get(GPU_INFO, "[]"))
    return {
        "TARGET_INFO_GPU": _rows("TARGET_INFO_GPU", [{"vmId": VIRTUAL_MACHINE, **gpu} for gpu in gpus]),
        "TARGET_INFO_CUDA_DEVICE": _rows(
            "TARGET_INFO_CUDA_DEVICE",
            [
                {"gpuId": gpu["id"], "cudaId": gpu["cuDevice"], "pid": spool.process, "uuid": gpu["uuid"],
                 "numMultiprocessors": gpu["smCount"]}
                for gpu in gpus
            ],
        ),
    }  # fmt: skip


def _contexts(spool: Spool) -> Any:
    contexts = spool.records["contexts"]
    _, first = np.unique(contexts["context_id"], return_index=True)
    c = contexts[first]
    columns = {
        "nullStreamId": int64(c["null_stream_id"]), "hwId": 0, "vmId": 1, "processId": spool.process,
        "deviceId": int64(c["device_id"]), "contextId": int64(c["context_id"]), "isGreenContext": 0,
    }  # fmt: skip
    return arrow_table("TARGET_INFO_CUDA_CONTEXT_INFO", columns, len(c))


def _streams(spool: Spool) -> Any:
    """Streams reported by CUPTI, and older streams that had work."""
    known = {
        (int(s["context_id"]), int(s["stream_id"])): (int(s["priority"]), int(s["flag"]))
        for s in spool.records["streams"]
    }
    for kind in ("kernels", "copies", "sets", "graphs"):
        work = spool.records[kind]
        for context, stream in set(zip(work["context_id"].tolist(), work["stream_id"].tolist(), strict=True)):
            known.setdefault((context, stream), (0, _UNKNOWN_STREAM_TYPE))
    rows = [
        {"streamId": stream, "hwId": 0, "vmId": 1, "processId": spool.process, "contextId": context,
         "priority": priority, "flag": flag}
        for (context, stream), (priority, flag) in sorted(known.items())
    ]  # fmt: skip
    return _rows("TARGET_INFO_CUDA_STREAM", rows)


def _utc(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def _session(spool: Spool) -> dict[str, Any]:
    clocks = spool.records["clocks"]
    monotonic = int(clocks["monotonic_ns"][0]) if len(clocks) else 0
    duration = int(clocks["monotonic_ns"][-1]) - monotonic if len(clocks) else 0
    return {
        "TARGET_INFO_SESSION_START_TIME": _rows(
            "TARGET_INFO_SESSION_START_TIME",
            [{"utcEpochNs": spool.start_ns, "utcTime": _utc(spool.start_ns),
              "localTime": _utc(spool.start_ns), "systemClockNs": monotonic}],
        ),
        "ANALYSIS_DETAILS": _rows(
            "ANALYSIS_DETAILS",
            [{"globalVid": VIRTUAL_MACHINE, "duration": duration, "startTime": monotonic,
              "stopTime": monotonic + duration}],
        ),
    }  # fmt: skip


def _system(spool: Spool) -> Any:
    names = {"CpuCores": _CORES_ENUM, "CpuArchitecture": _ARCHITECTURE_ENUM,
             "NvDriverVersion": _DRIVER_VERSION_ENUM, "OsDescription": _OS_ENUM}  # fmt: skip
    info = json.loads(spool.meta.get(SYSTEM_INFO, "{}"))
    rows = [
        {
            "globalVid": VIRTUAL_MACHINE,
            "devStateName": "System",
            "name": name,
            "nameEnum": number,
            "value": info[name],
        }
        for name, number in names.items()
        if name in info
    ]
    return _rows("TARGET_INFO_SYSTEM_ENV", rows)


def _diagnostics(spool: Spool, strings: StringTable) -> Any:
    rows = [
        {"timestamp": int(d["time_ns"]) - spool.start_ns, "timestampType": _TARGET_TIMESTAMP,
         "source": _DIAGNOSTIC_FROM_INJECTION, "severity": int(d["severity"]),
         "text": strings.text(int(d["text"])), "globalPid": spool.global_pid}
        for d in spool.records["diagnostics"]
    ]  # fmt: skip
    return _rows("DIAGNOSTIC_EVENT", rows)


def _capture_meta(spool: Spool) -> list[tuple[str, str]]:
    pairs = [("CAPTURE_EVENT_TYPE", "NvtxEvents"), ("DEVICE_TYPE", "Unix")]
    if spool.meta.get("gpu") == "on":
        pairs += [("CAPTURE_EVENT_TYPE", "Cuda"), ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph")]
    return pairs


def _export_meta() -> list[tuple[str, str]]:
    from profiling_lab import _recorder

    major, minor, micro = NSYS_SCHEMA_VERSION.split(".")
    return [
        ("EXPORT_PRODUCT_NAME", "profiling_lab"),
        ("EXPORT_PRODUCT_VERSION", _recorder.VERSION),
        ("EXPORT_SCHEMA_VERSION", NSYS_SCHEMA_VERSION),
        ("EXPORT_SCHEMA_VERSION_MAJOR", major),
        ("EXPORT_SCHEMA_VERSION_MINOR", minor),
        ("EXPORT_SCHEMA_VERSION_MICRO", micro),
        ("EXPORT_PLATFORM", "linux-desktop"),
        ("EXPORT_ARCH", "x64"),
        ("EXPORT_TIME_UTC", datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")),
        ("EXPORT_PARAM_EXPORT_TYPE", "SQLite"),
    ]


def _own_meta(spool: Spool) -> list[tuple[str, str]]:
    pairs = [pair for pair in sorted(spool.meta.items()) if is_in_the_meta_table(pair[0])]
    nodes = spool.records["stack_nodes"]
    lost = int((~np.isin(spool.records["calls"]["stack"], [0, *nodes["id"].tolist()])).sum())
    if "finished" not in spool.meta:
        pairs.append(("finished", "no"))  # the process was killed, or ended by os._exit
    return [*pairs, ("stacks_lost", str(lost))]
