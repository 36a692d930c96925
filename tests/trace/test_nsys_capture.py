# SPDX-License-Identifier: Apache-2.0
"""The options that nsys ran with: told from what the export notes, never anything else of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.analysis.info import info
from profiling_lab.trace import Trace
from profiling_lab.trace.nsys.capture import event_counts, nsys_options, trace_method

SECRET = "hf_abcdefghijklmnop"


def options_of(
    folder: Path, captured: dict[str, str], exported: dict[str, str] | None = None
) -> tuple[str, ...]:
    builder = TraceBuilder(form="nsys").launch("gemm", 10)
    for name, value in captured.items():
        builder.row("META_DATA_CAPTURE", name=name, value=value)
    for name, value in (exported or {}).items():
        builder.row("META_DATA_EXPORT", name=name, value=value)
    with Trace.open(builder.write(folder / "t.sqlite")) as trace:
        return nsys_options(trace.source.file)


def test_real_files(captures: Path) -> None:
    told = {}
    for name in ("python_backtrace", "sampling", "autograd_nvtx"):
        with Trace.open(captures / f"{name}_h200.sqlite") as trace:
            told[name] = " ".join(info(trace).options)
            assert info(trace).method == ""
    shared = "--cuda-graph-trace=graph"
    on, off = (f"--sample={how} --cpuctxsw={how}" for how in ("process-tree", "none"))
    assert told == {
        "python_backtrace": f"--trace=nvtx,cuda --cudabacktrace=all:0 --python-backtrace=cuda {on} {shared}",
        "sampling": "--trace=nvtx,cuda --python-sampling=true --python-sampling-frequency=1000 "
        f"{on} {shared}",
        "autograd_nvtx": f"--trace=nvtx,cuda {off} {shared}",
    }


def test_thresholds_of_backtraces_and_what_was_exported(tmp_path: Path) -> None:
    backtraces = "PROCESS_12:CUDA_BACKTRACE_OPTIONS:"
    options = options_of(
        tmp_path,
        {
            f"{backtraces}COLLECT_KERNEL_BACKTRACES": "true",
            f"{backtraces}KERNEL_BACKTRACES_THRESHOLD_NS": "80000",
            f"{backtraces}COLLECT_MEMORY_BACKTRACES": "true",
            f"{backtraces}COLLECT_OTHER_BACKTRACES": "false",
            "COLLECT_GPU_MEMORY_USAGE": "true",
        },
        {"EXPORT_PARAM_INCLUDE_JSON": "true", "EXPORT_PARAM_TIMES_TO_EXPORT": "1s/2s"},
    )
    assert options == (
        "--cudabacktrace=kernel:80000,memory:0",
        "--cuda-memory-usage=true",
        "--include-json=true",
        "only a part was exported",
    )


@pytest.mark.parametrize(
    "name",
    [
        "CAPTURE_EVENT_TYPE",
        "PROCESS_0:ENVIRONMENT_VARIABLE",
        "PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE",
        "LINUX_PERF_OPTIONS:COLLECTION_MODE",
        "PYTHON_BACKTRACE_SAMPLING_OPTIONS:SAMPLING_RATE",
        "USE_LINUX_PERF",
    ],
)
def test_other_values_are_not_repeated(tmp_path: Path, name: str) -> None:
    captured = {name: SECRET, "PYTHON_BACKTRACE_SAMPLING_OPTIONS:COLLECT_SAMPLES": "true"}
    exported = {"EXPORT_PARAM_INCLUDE_JSON": SECRET, "EXPORT_PARAM_TABLES_TO_EXPORT": SECRET}
    assert SECRET not in " ".join(options_of(tmp_path, captured, exported))


def test_how_the_gpu_was_timed() -> None:
    legacy = "CUDA hardware tracing is not supported. A legacy (software instrumented) trace was collected"
    assert trace_method([legacy]).startswith("software")
    assert trace_method(["CUDA hardware tracing enabled."]) == "hardware"
    assert trace_method(["Profiling has started."]) == "", "unknown is not software"


def test_events_produced_and_kept() -> None:
    produced = "Number of CUPTI events produced: \t1570, CUPTI buffers: 50."
    assert event_counts([produced, "Number of CUDA events collected: 1,528."]) == (1570, 1528)
    assert event_counts([produced]) is None
