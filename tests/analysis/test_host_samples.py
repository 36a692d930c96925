# SPDX-License-Identifier: Apache-2.0
"""Samples of the host: what they name, and in which idle time they fall."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from builders import TraceBuilder, parse_stack

from profiling_lab.analysis.gaps.gaps import GapsResult, gaps
from profiling_lab.trace import Trace
from profiling_lab.trace.extras import HostSamples
from profiling_lab.trace.ownership import Ownership

US = 1000
SAMPLING = "Python Periodic Sampling"
LOADER = "/app/train.py:44 main > /lib/python3.11/site-packages/torch/utils/data/dataloader.py:7 __next__"

Native = tuple[int, int, str, str, int]  # time, thread, symbol, module, unresolved


def with_native(path: Path, builder: TraceBuilder, samples: list[Native]) -> Path:
    """The tables of CPU samples. Frame 1 is the caller, which nothing asks for."""
    rows = [
        (number, time, builder.tid(thread), builder.string(symbol), builder.string(module), hidden)
        for number, (time, thread, symbol, module, hidden) in enumerate(samples, 1)
    ]
    caller = builder.string("caller")
    builder.write(path)
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE COMPOSITE_EVENTS (id, start, cpu, threadState, globalTid)")
        file.execute("CREATE TABLE SAMPLING_CALLCHAINS (id, symbol, module, unresolved, stackDepth)")
        for number, time, tid, symbol, module, hidden in rows:
            file.execute("INSERT INTO COMPOSITE_EVENTS VALUES (?, ?, 0, 1, ?)", (number, time, tid))
            for depth, name in enumerate((symbol, caller)):
                values = (number, name, module, hidden, depth)
                file.execute("INSERT INTO SAMPLING_CALLCHAINS VALUES (?, ?, ?, ?, ?)", values)
    file.close()
    return path


def samples_of(path: Path) -> tuple[HostSamples, GapsResult]:
    with Trace.open(path) as trace:
        return trace.source.samples(Ownership()), gaps(trace)


def pause() -> TraceBuilder:
    """The GPU idles from 1,100 to 1,303 us; the main thread launches at 1,300."""
    builder = TraceBuilder(form="nsys").launch("a", 90 * US, start_ns=1010 * US)
    builder.now_ns = 1300 * US
    return builder.launch("b", 10 * US, start_ns=1303 * US)


def test_where_native_code_was(tmp_path: Path) -> None:
    brackets = "void (anonymous namespace)::ns::work<int, float>(int const*)"
    path = with_native(
        tmp_path / "t.sqlite",
        pause(),
        [
            (1050 * US, 1, "poll", "/usr/lib/libc.so.6", 0),  # the GPU was busy
            (1150 * US, 1, "poll", "/usr/lib/libc.so.6", 0),
            (1160 * US, 1, "poll", "/usr/lib/libc.so.6", 0),
            (1170 * US, 1, brackets, "/app/x.so", 0),
            (1180 * US, 1, "0x7f00", "/usr/lib/libcuda.so.1", 1),
            (1190 * US, 2, "poll", "/usr/lib/libc.so.6", 0),  # a thread that no other waited for
            (1302 * US, 1, "0x7f00", "/usr/lib/libcuda.so.1", 1),  # in the launch
        ],
    )
    samples, result = samples_of(path)
    assert samples.places == ("poll (libc.so.6)", "ns::work (x.so)", "libcuda.so.1") and len(samples) == 7
    sampled = {row.cause: row.sampled for row in result.rows if row.sampled}
    assert sampled == {
        "host code": (("poll (libc.so.6)", 2), ("libcuda.so.1", 1), ("ns::work (x.so)", 1)),
        "inside a CUDA call": (("libcuda.so.1", 1),),
    }


def test_where_python_was(tmp_path: Path) -> None:
    """The line in user code, not that of the library it called."""
    builder = pause()
    for i in range(3):
        builder.backtrace((1150 + i) * US, builder.tid(1), parse_stack(LOADER), schema=SAMPLING, by_id=i == 1)
    outside = "/lib/python3.11/site-packages/torch/x.py:7 only"
    builder.backtrace(1160 * US, builder.tid(1), parse_stack(outside), schema=SAMPLING)
    builder.row("NVTX_EVENTS", start=1170 * US, eventType=34, globalTid=builder.tid(1), jsonText="{broken")
    samples, result = samples_of(builder.write(tmp_path / "t.sqlite"))
    assert samples.places == ("train.py:44 main", "x.py:7 only")
    (row,) = [row for row in result.rows if row.cause == "host code"]
    assert row.sampled == (("train.py:44 main", 3), ("x.py:7 only", 1))


def test_a_sample_counts_once_on_two_devices(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys")
    for device in (0, 1):
        builder.launch("a", 90 * US, start_ns=1010 * US, device=device)
    builder.now_ns = 1300 * US
    for device in (0, 1):
        builder.launch("b", 10 * US, start_ns=1310 * US, device=device)
    path = with_native(tmp_path / "t.sqlite", builder, [(1200 * US, 1, "poll", "libc.so.6", 0)])
    assert sum(times for row in samples_of(path)[1].rows for _, times in row.sampled) == 1


def test_files_without_samples(tmp_path: Path) -> None:
    samples, result = samples_of(pause().write(tmp_path / "t.sqlite"))
    assert len(samples) == 0 and not any(row.sampled for row in result.rows)


def test_cublas_starts_up_in_the_real_file(captures: Path) -> None:
    """No line is known there, and no call was under way: samples alone tell what took 59 ms."""
    _, result = samples_of(captures / "sampling_h200.sqlite")
    row = max(result.rows, key=lambda row: row.idle_ns)
    assert (row.cause, row.what) == ("host code", "forward")
    assert row.sampled[0] == ("libcublasLt.so.13", 9) and sum(times for _, times in row.sampled) == 19
