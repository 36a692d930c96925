# SPDX-License-Identifier: Apache-2.0
"""Which memory copies touch, and what held the program up, from both kinds of files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.trace import Trace
from profiling_lab.trace.columns import MemoryKind, OverheadKind


def test_kinds_of_memory_in_sqlite(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("k", 1000)
    builder.copy("HtoD", 10, source=MemoryKind.PAGEABLE, target=MemoryKind.DEVICE)
    builder.copy("DtoH", 10, source=99)
    builder.memset(10, memory=MemoryKind.MANAGED)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        unknown = MemoryKind.UNKNOWN
        assert trace.operations.source_memory.tolist() == [unknown, MemoryKind.PAGEABLE, unknown, unknown]
        assert trace.operations.target_memory.tolist() == [
            unknown,
            MemoryKind.DEVICE,
            unknown,
            MemoryKind.MANAGED,
        ]


def test_overheads_in_sqlite(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys").launch("k", 1000)
    row = {"globalTid": builder.tid(1), "nameId": 1}
    builder.row("PROFILER_OVERHEAD", start=10, end=30, overheadType=OverheadKind.BUFFER_FLUSH, **row)
    row = {"globalTid": builder.tid(2)}
    builder.row("CUPTI_ACTIVITY_KIND_OVERHEAD", start=50, end=40, overheadType=8, **row)
    builder.row("CUPTI_ACTIVITY_KIND_OVERHEAD", start=60, end=70, overheadType=77, **row)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        found = trace.overheads
        assert len(found) == 3 and (found.end_ns - found.start_ns).tolist() == [20, 0, 10]
        assert found.kind.tolist() == [
            OverheadKind.BUFFER_FLUSH,
            OverheadKind.COMMAND_BUFFER_FULL,
            OverheadKind.UNKNOWN,
        ]
        assert found.thread[0] != found.thread[1] and len(set(found.process.tolist())) == 1


def test_old_overhead_tables_have_no_kinds(captures: Path) -> None:
    with Trace.open(captures / "autograd_nvtx_h200.sqlite") as trace:
        assert trace.overheads.kind.tolist() == [OverheadKind.PROFILER] * 29
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        found = trace.overheads
        assert found.kind.tolist() == [OverheadKind.COMMAND_BUFFER_FULL] * 198
        assert (found.end_ns - found.start_ns).sum() == 911_969_806


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("Memcpy HtoD (Pageable -> Device)", MemoryKind.PAGEABLE, MemoryKind.DEVICE),
        ("Memcpy DtoH (Device -> Pinned)", MemoryKind.DEVICE, MemoryKind.PINNED),
        ("Memset (Managed)", MemoryKind.UNKNOWN, MemoryKind.MANAGED),
        ("Memset (Device Static)", MemoryKind.UNKNOWN, MemoryKind.DEVICE_STATIC),
        ("Memcpy DtoD", MemoryKind.UNKNOWN, MemoryKind.UNKNOWN),
    ],
)
def test_torch_profiler_says_it_in_names(
    tmp_path: Path, name: str, source: MemoryKind, target: MemoryKind
) -> None:
    kind = "gpu_memcpy" if "Memcpy" in name else "gpu_memset"
    shared = {"ph": "X", "ts": 1.0, "dur": 2.0, "tid": 7}
    events = [
        {"cat": kind, "name": name, "pid": 0, **shared},
        {"cat": "overhead", "name": "Command Buffer Full", "pid": -1, **shared},
        {"cat": "overhead", "name": "Something new", "pid": -1, **shared},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with Trace.open(path) as trace:
        assert trace.operations.source_memory.tolist() == [source]
        assert trace.operations.target_memory.tolist() == [target]
        assert trace.overheads.kind.tolist() == [OverheadKind.COMMAND_BUFFER_FULL, OverheadKind.UNKNOWN]
        assert (trace.overheads.end_ns - trace.overheads.start_ns).tolist() == [2000, 2000]
