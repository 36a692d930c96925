# SPDX-License-Identifier: Apache-2.0
"""The options of nsys with which a file was recorded, as far as the export contains them.

The same table also contains the whole environment and the arguments of the recorded program. So only the
names listed here are read, and of their values only numbers, true and false, and the words listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from profiling_lab.trace.nsys.sqlite_file import SqliteFile

_PROCESS = re.compile(r"^PROCESS_\d+:")
_EVENTS = {"Cuda": "cuda", "NvtxEvents": "nvtx"}
_SCOPES = {"ProcessTree": "process-tree", "System": "system-wide"}
_GRAPH_MODES = {"Graph": "graph", "Node": "node"}
# Options of --cudabacktrace, by their names in the table.
_BACKTRACES = {"KERNEL": "kernel", "MEMORY": "memory", "SYNCHRONOIZATION": "sync", "OTHER": "other"}

# The tracing method, in the words of the profiler's diagnostics.
_LEGACY = re.compile(r"(?i)legacy \(software|hardware trac\w* is not supported")
_HARDWARE = re.compile(
    r"(?i)cuda hardware trac\w* (is )?(enabled|initialized|in use)|hardware-based cuda trac"
)
_PRODUCED = re.compile(r"Number of CUPTI events produced:\s*(\d+), CUPTI buffers:\s*(\d+)")
_COLLECTED = re.compile(r"Number of CUDA events collected:\s*([\d,]+)")


def nsys_options(file: SqliteFile) -> tuple[str, ...]:
    """The options of `nsys profile` and `nsys export` that record something."""
    values = _captured(file)

    def is_on(name: str) -> bool:
        return "true" in values.get(name, ())

    traced = [_EVENTS[value] for value in values.get("CAPTURE_EVENT_TYPE", ()) if value in _EVENTS]
    options = [f"--trace={','.join(dict.fromkeys(traced))}"] if traced else []
    options += _backtraces(values)
    if is_on("CUDA_BACKTRACE_OPTIONS:COLLECT_PYTHON_BACKTRACES"):
        options.append("--python-backtrace=cuda")
    if is_on("PYTHON_BACKTRACE_SAMPLING_OPTIONS:COLLECT_SAMPLES"):
        options.append("--python-sampling=true")
        rates = _numbers(values.get("PYTHON_BACKTRACE_SAMPLING_OPTIONS:SAMPLING_RATE", ()))
        options += [f"--python-sampling-frequency={rate}" for rate in rates[:1]]
    scope = next(
        (_SCOPES[v] for v in values.get("LINUX_PERF_OPTIONS:COLLECTION_MODE", ()) if v in _SCOPES), ""
    )
    if "USE_LINUX_PERF" in values:
        sampled = is_on("LINUX_PERF_OPTIONS:COLLECT_IP_BACKTRACE_SAMPLES")
        switches = is_on("LINUX_PERF_OPTIONS:COLLECT_CPU_CTXSW_TRACE")
        options += [
            f"--sample={scope or 'process-tree' if sampled else 'none'}",
            f"--cpuctxsw={scope or 'process-tree' if switches else 'none'}",
        ]
    modes = [_GRAPH_MODES[v] for v in values.get("CUDA_GRAPH_TRACE_OPTIONS:MODE", ()) if v in _GRAPH_MODES]
    options += [f"--cuda-graph-trace={mode}" for mode in modes[:1]]
    for name, option in (
        ("COLLECT_GPU_MEMORY_USAGE", "--cuda-memory-usage=true"),
        ("COLLECT_UVM_CPU_PAGE_FAULTS", "--cuda-um-cpu-page-faults=true"),
        ("COLLECT_UVM_GPU_PAGE_FAULTS", "--cuda-um-gpu-page-faults=true"),
        ("COLLECT_GPU_CTX_SW_TRACE", "--gpuctxsw=true"),
    ):
        options += [option] if is_on(name) else []
    return (*options, *_export_options(file))


def trace_method(texts: Iterable[str]) -> str:
    """The tracing method, from the diagnostics: hardware, or software, which slows launches."""
    listed = list(texts)
    if any(_LEGACY.search(text) for text in listed):
        return "software (this GPU or driver has no hardware tracing)"
    return "hardware" if any(_HARDWARE.search(text) for text in listed) else ""


def event_counts(texts: Iterable[str]) -> tuple[int, int] | None:
    """The number of produced and of collected CUDA events, if the diagnostics contain both."""
    produced = collected = None
    for text in texts:
        if match := _PRODUCED.search(text):
            produced = (produced or 0) + int(match[1])
        if match := _COLLECTED.search(text):
            collected = (collected or 0) + int(match[1].replace(",", ""))
    return None if produced is None or collected is None else (produced, collected)


def _captured(file: SqliteFile) -> dict[str, list[str]]:
    """Values by name, without the process number."""
    if not {"name", "value"} <= set(file.columns("META_DATA_CAPTURE")):
        return {}
    values: dict[str, list[str]] = {}
    for name, value in file.texts(
        "SELECT CAST(COALESCE(name, '') AS BLOB), CAST(COALESCE(value, '') AS BLOB) FROM META_DATA_CAPTURE"
    ):
        values.setdefault(_PROCESS.sub("", name), []).append(value)
    return values


def _numbers(values: Iterable[str]) -> list[int]:
    return [int(value) for value in values if value.isdecimal() and len(value) < 16]


def _backtraces(values: dict[str, list[str]]) -> list[str]:
    limits = {}
    for name, option in _BACKTRACES.items():
        if "true" in values.get(f"CUDA_BACKTRACE_OPTIONS:COLLECT_{name}_BACKTRACES", ()):
            found = _numbers(values.get(f"CUDA_BACKTRACE_OPTIONS:{name}_BACKTRACES_THRESHOLD_NS", ()))
            limits[option] = found[0] if found else 0
    if not limits:
        return []
    if len(limits) == len(_BACKTRACES) and len(set(limits.values())) == 1:
        return [f"--cudabacktrace=all:{limits['kernel']}"]
    return [f"--cudabacktrace={','.join(f'{option}:{limit}' for option, limit in limits.items())}"]


def _export_options(file: SqliteFile) -> list[str]:
    if not {"name", "value"} <= set(file.columns("META_DATA_EXPORT")):
        return []
    found = file.texts(
        "SELECT CAST(name AS BLOB), CAST(COALESCE(value, '') AS BLOB) FROM META_DATA_EXPORT"
        " WHERE name IN ('EXPORT_PARAM_INCLUDE_JSON', 'EXPORT_PARAM_INCLUDE_BLOBS',"
        " 'EXPORT_PARAM_TABLES_TO_EXPORT', 'EXPORT_PARAM_TIMES_TO_EXPORT')"
    )
    rows = {row[0]: row[1] for row in found}
    options = [
        f"--include-{what.lower()}={rows[name]}"
        for what in ("JSON", "BLOBS")
        if rows.get(name := f"EXPORT_PARAM_INCLUDE_{what}") in ("true", "false")
    ]
    for name, text in (("TABLES", "only some tables were exported"), ("TIMES", "only a part was exported")):
        options += [text] if rows.get(f"EXPORT_PARAM_{name}_TO_EXPORT") else []
    return options
