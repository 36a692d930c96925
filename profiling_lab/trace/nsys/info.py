# SPDX-License-Identifier: Apache-2.0
"""The properties of a trace in the nsys schema, and which options of nsys record what is missing.

Only selected values are read: an nsys export also contains the whole environment of the traced process,
which must not appear in a bug report.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.extras import GIL_WAIT
from profiling_lab.trace.facts import OUR_METHOD, Recorded, TraceInfo, utc
from profiling_lab.trace.nsys.calls import BACKTRACE_CLASS, CALL_TABLE
from profiling_lab.trace.nsys.capture import event_counts, nsys_options, trace_method
from profiling_lab.trace.nsys.devices import read_gpus
from profiling_lab.trace.nsys.nsys_stacks import (
    BACKTRACE_SCHEMA,
    SAMPLING_SCHEMA,
    marks_without_payload,
    payload_sql,
)
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.process_ids import pid_of
from profiling_lab.trace.source import Tables

_PYTHON_FLAGS = (
    "--python-backtrace=cuda --cudabacktrace=all:0, with CPU sampling on; export with --include-json=true"
)


def sqlite_info(file: SqliteFile, recorder_facts: dict[str, str], whole: Tables) -> TraceInfo:
    is_ours = whole.recorder == "profiling_lab"
    export = _pairs(file, "META_DATA_EXPORT") or _pairs(file, "EXPORT_META_DATA")
    product = " ".join(
        filter(None, (export.get("EXPORT_PRODUCT_NAME", ""), export.get("EXPORT_PRODUCT_VERSION", "")))
    )
    diagnostics = _diagnostics(file)
    return TraceInfo(
        path=str(whole.path),
        file_bytes=file.size_bytes,
        product=product or ("profiling_lab recorder" if is_ours else ""),
        schema=export.get("EXPORT_SCHEMA_VERSION", ""),
        started_utc=_started(file),
        duration_ns=_duration(file),
        gpus=read_gpus(file),
        driver=_driver(file),
        processes=_processes(file),
        recorded=tuple(_recorded(file, recorder_facts, whole)),
        recorder=tuple(_pairs(file, "PYREC_META").items()),
        options=() if is_ours else nsys_options(file),
        method=OUR_METHOD if is_ours else trace_method(diagnostics),
        ranks=(),
        events=event_counts(diagnostics),
        overhead_ns=_overhead(file),
        warnings=_warnings(file),
    )


def _pairs(file: SqliteFile, table: str) -> dict[str, str]:
    if not {"name", "value"} <= set(file.columns(table)):
        return {}
    rows = file.texts(f"SELECT CAST(name AS BLOB), CAST(COALESCE(value, '') AS BLOB) FROM \"{table}\"")
    return {row[0]: row[1] for row in rows}


def _number(file: SqliteFile, query: str) -> int:
    return int(file.integers(query, 1)[0][0])


def _rows(file: SqliteFile, stem: str, where: str = "", *needs: str) -> int:
    """The number of rows that match `where`; 0 if the table or a needed column is missing."""
    table = file.newest(stem)
    if table is None or not set(needs) <= set(file.columns(table)):
        return 0
    return _number(file, f'SELECT count(*) FROM "{table}" {where}')


def _started(file: SqliteFile) -> str:
    if "utcEpochNs" not in file.columns("TARGET_INFO_SESSION_START_TIME"):
        return ""
    epoch_ns = file.select("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": 0})["utcEpochNs"]
    if not len(epoch_ns) or epoch_ns[0] <= 0:
        return ""
    return utc(int(epoch_ns[0]))


def _duration(file: SqliteFile) -> int | None:
    if "duration" not in file.columns("ANALYSIS_DETAILS"):
        return None
    duration = file.select("ANALYSIS_DETAILS", {"duration": 0})["duration"]
    return int(duration.max()) if len(duration) else None


def _driver(file: SqliteFile) -> str:
    if not {"name", "value"} <= set(file.columns("TARGET_INFO_SYSTEM_ENV")):
        return ""
    rows = file.texts(
        "SELECT CAST(value AS BLOB) FROM TARGET_INFO_SYSTEM_ENV"
        " WHERE name IN ('NvDriverVersion', 'NVDriverVersion')"
    )
    return rows[0][0] if rows else ""


def _processes(file: SqliteFile) -> tuple[str, ...]:
    if not {"globalPid", "name"} <= set(file.columns("PROCESSES")):
        table = file.newest(CALL_TABLE)
        if table is None or "globalTid" not in file.columns(table):
            return ()
        pids = file.integers(f'SELECT DISTINCT (IFNULL(globalTid, 0) >> 24) & 16777215 FROM "{table}"', 1)[0]
        return tuple(f"pid {pid}" for pid in sorted(pids.tolist()))
    ids = file.select("PROCESSES", {"globalPid": 0})["globalPid"].tolist()
    names = [name for (name,) in file.texts("SELECT CAST(COALESCE(name, '') AS BLOB) FROM PROCESSES")]
    return tuple(f"pid {pid_of(i)} {name}".rstrip() for i, name in zip(ids, names, strict=True))


def _overhead(file: SqliteFile) -> int | None:
    """The profiler's own overhead: flushes, instrumentation, resources; not the other kinds."""
    total = None
    for table in ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"):
        columns = file.columns(table)
        if {"start", "end"} <= set(columns):
            where = "WHERE overheadType IN (3, 4, 5)" if "overheadType" in columns else ""
            # As reals, because the times of a damaged file may overflow an integer.
            taken = "CAST(IFNULL(sum(CAST(end AS REAL) - start), 0) AS INTEGER)"
            total = (total or 0) + _number(file, f"SELECT {taken} FROM {table} {where}")
    return total


def _diagnostics(file: SqliteFile, where: str = "1") -> tuple[str, ...]:
    if not {"severity", "text"} <= set(file.columns("DIAGNOSTIC_EVENT")):
        return ()
    rows = file.texts(f"SELECT DISTINCT CAST(text AS BLOB) FROM DIAGNOSTIC_EVENT WHERE {where}")
    return tuple(" ".join(text.split()) for (text,) in rows)


def _warnings(file: SqliteFile) -> tuple[str, ...]:
    return _diagnostics(file, "severity IN (2, 3) OR text LIKE '%legacy%' OR text LIKE 'Not all %'")


def _recorded(file: SqliteFile, recorder_facts: dict[str, str], whole: Tables) -> list[Recorded]:
    is_ours = whole.recorder == "profiling_lab"

    def rows(stem: str) -> int:
        return _rows(file, stem)

    def cuda(key: str, what: str, stem: str) -> Recorded:
        return Recorded(key, what, rows(f"CUPTI_ACTIVITY_KIND_{stem}"), "")

    # A file with one GPU table had CUDA tracing on. Then a missing table means that there were no such
    # events.
    traced = any(rows(f"CUPTI_ACTIVITY_KIND_{stem}") for stem in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME"))
    no_cuda = "" if traced or is_ours else "--trace=cuda, if anything ran on the GPU"

    def nsys(flags: str) -> str:
        return f"nsys profile {flags}; profiling-lab record cannot record this" if is_ours else flags

    nvtx = nsys("--trace=nvtx, if there are any")
    if is_ours:
        nvtx = (
            _switched("nvtx_state", "--no-nvtx", recorder_facts)
            or "torch.cuda.nvtx.range(...) in the program"
        )
    # nsys stores stacks in extra rows; if rows have no class, all of them are calls.
    backtraces = _rows(file, CALL_TABLE, f"WHERE eventClass = {BACKTRACE_CLASS}", "eventClass")
    chains = file.newest("CUDA_CALLCHAINS")
    if chains is not None and "id" not in file.columns(chains):
        chains = None
    return [
        Recorded("kernels", "kernels", rows("CUPTI_ACTIVITY_KIND_KERNEL"), no_cuda),
        cuda("copies", "copies", "MEMCPY"),
        cuda("sets", "memsets", "MEMSET"),
        cuda("graphs", "CUDA graphs as a whole", "GRAPH_TRACE"),
        cuda("syncs", "synchronizations", "SYNCHRONIZATION"),
        Recorded("calls", "CUDA API calls", rows(CALL_TABLE) - backtraces, no_cuda),
        *_stacks(file, recorder_facts),
        Recorded(
            "native_chains",
            "native call chains of API calls",
            _number(file, f'SELECT count(DISTINCT id) FROM "{chains}"') if chains else 0,
            nsys("--cudabacktrace=all:0, with CPU sampling on"),
        ),
        Recorded(
            "nvtx",
            "NVTX ranges",
            _rows(file, "NVTX_EVENTS", "WHERE eventType IN (59, 60)", "eventType"),
            nvtx,
        ),
        Recorded(
            "cpu_samples",
            "CPU samples",
            rows("COMPOSITE_EVENTS"),
            nsys("--sample=process-tree"),
        ),
        Recorded("os_calls", "operating-system calls", rows("OSRT_API"), nsys("--trace=osrt")),
        Recorded("gil", "waits for the GIL", _gil_waits(whole), nsys("--trace=python-gil")),
        Recorded("switches", "context switches", rows("SCHED_EVENTS"), nsys("--cpuctxsw=process-tree")),
        Recorded(
            "memory",
            "GPU memory allocations",
            rows("CUDA_GPU_MEMORY_USAGE_EVENTS") + rows("PYREC_MEMORY_EVENT"),
            "profiling-lab record --memory" if is_ours else "--cuda-memory-usage=true",
        ),
        Recorded(
            "gpu_metrics",
            "GPU metric samples",
            rows("GPU_METRICS"),
            nsys("--gpu-metrics-devices=all"),
        ),
    ]


def _stacks(file: SqliteFile, recorder_facts: dict[str, str]) -> list[Recorded]:
    """Python stacks of API calls, and the numbers that link backward to forward."""
    if file.columns("PYREC_LAUNCH"):
        stacks = _rows(file, "PYREC_LAUNCH", "WHERE stackId > 0", "stackId")
        linked = _rows(file, "PYREC_LAUNCH", "WHERE nodeSeq IS NOT NULL", "nodeSeq")
        return [
            Recorded(
                "python_stacks",
                "Python stacks of API calls",
                stacks,
                _switched("stacks_state", "--no-stacks", recorder_facts) or "see doctor: the stack self-test",
            ),
            _marks(
                file,
                "python_samples",
                "periodic Python stacks",
                SAMPLING_SCHEMA,
                "profiling-lab record, without --no-samples",
            ),
            Recorded(
                "autograd",
                "API calls in backward, with their autograd node",
                linked,
                "a backward pass while recording",
            ),
            Recorded(
                "work",
                "operators of one step with their FLOPs and bytes",
                _rows(file, "PYREC_WORK"),
                "profiling-lab record --work",
            ),
            Recorded(
                "counters",
                "samples of hardware counters",
                _rows(file, "PYREC_COUNTERS"),
                "profiling-lab record --counters",
            ),
            Recorded(
                "energy",
                "changes of the GPU's energy counter",
                _rows(file, "PYREC_ENERGY"),
                "profiling-lab record --energy",
            ),
        ]
    where = "WHERE eventType IN (59, 60) AND text LIKE '%, seq = %'"
    sequences = _rows(file, "NVTX_EVENTS", where, "eventType", "text")
    return [
        _marks(file, "python_stacks", "Python stacks of API calls", BACKTRACE_SCHEMA, _PYTHON_FLAGS),
        _marks(file, "python_samples", "periodic Python stacks", SAMPLING_SCHEMA, "--python-sampling=true"),
        Recorded("autograd", "operator ranges with a sequence number", sequences, "--pytorch=autograd-nvtx"),
    ]


def _switched(state: str, option: str, recorder_facts: dict[str, str]) -> str:
    """A hint to omit the option that turned this off in our recorder, if it was given."""
    is_off = recorder_facts.get(state) == "switched off"
    return f"profiling-lab record without {option}" if is_off else ""


def _gil_waits(whole: Tables) -> int:
    names = np.array([bool(GIL_WAIT.search(name)) for name in whole.ranges.names] or [False], dtype=bool)
    return int(names[whole.ranges.name].sum())


def _marks(file: SqliteFile, key: str, what: str, schema: str, flags: str) -> Recorded:
    """Python stacks in nsys' form. Stacks exported without frames count as missing."""
    table = file.newest("NVTX_EVENTS")
    if table is None or not {"eventType"} < set(file.columns(table)):
        return Recorded(key, what, 0, flags)
    payload, join = payload_sql(file, table)
    where = f"n.eventType = 34 AND {payload} LIKE '{{\"{schema}%'"
    readable = _number(file, f'SELECT count(*) FROM "{table}" n {join} WHERE {where}')
    if unread := marks_without_payload(file, schema):
        flags = f"{unread:,} were recorded, but exported without frames: export with --include-json=true"
    return Recorded(key, what, readable, flags)
