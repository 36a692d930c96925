# SPDX-License-Identifier: Apache-2.0
"""Exports that lack a column: facts that are not there are unknown, the others are told."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from builders import VM, TraceBuilder

from profiling_lab.analysis.info import info
from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace import Trace


def full_export(path: Path) -> Path:
    """A file as nsys writes it, with rows in every table that `info` looks at."""
    builder = TraceBuilder(form="nsys")
    for _ in range(3):
        builder.launch("k", 5_000, stack="/app/a.py:3 f").copy("HtoD", 900).memset(50)
    builder.range("step, seq = 3", 1_000_000, 1_020_000)
    builder.row("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=1, end=2, deviceId=0, contextId=1, streamId=7,
                syncType=1, eventId=0)  # fmt: skip
    for table in ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD"):
        builder.row(table, start=1_000_000, end=1_000_500, globalTid=builder.tid(1), nameId=1, overheadType=3)
    builder.row("CUDA_GPU_MEMORY_USAGE_EVENTS", start=1_000_000, globalPid=VM | builder.pid << 24, deviceId=0,
                bytes=1, memKind=2, memoryOperationType=0)  # fmt: skip
    builder.row("TARGET_INFO_GPU", vmId=0, id=0, name="NVIDIA H200", totalMemory=1 << 37, computeMajor=9)
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000 * 10**9, utcTime="", localTime="")
    builder.row("TARGET_INFO_SYSTEM_ENV", devStateName="", name="NvDriverVersion", nameEnum=1, value="580")
    builder.row("ANALYSIS_DETAILS", globalVid=0, duration=9, startTime=0, stopTime=9)
    builder.row("DIAGNOSTIC_EVENT", timestamp=0, timestampType=0, source=1, severity=2, text="odd")
    builder.row("PROCESSES", globalPid=VM | builder.pid << 24, pid=builder.pid, name="python")
    return builder.write(path)


def columns(path: Path) -> list[tuple[str, str]]:
    with sqlite3.connect(path) as file:
        tables = [t for (t,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [(table, row[1]) for table in tables for row in file.execute(f'PRAGMA table_info("{table}")')]


def test_a_file_that_can_be_read_has_an_info(tmp_path: Path) -> None:
    whole = full_export(tmp_path / "whole.sqlite")
    refused = []
    for table, column in columns(whole):
        path = tmp_path / f"{table}.{column}.sqlite"
        path.write_bytes(whole.read_bytes())
        with sqlite3.connect(path) as file:
            try:
                file.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
            except sqlite3.OperationalError:
                continue  # the only column of its table
        file.close()
        with Trace.open(path) as trace:
            try:
                lengths = (len(trace.operations), len(trace.calls), len(trace.ranges))
            except UnreadableInputError:
                refused.append(f"{table}.{column}")
                continue
            told = info(trace)
            _ = trace.overheads, trace.syncs, trace.devices, trace.pauses, trace.launch_shapes
        assert lengths[0] and json.dumps([r.rows for r in told.recorded]), (table, column)
    assert "CUPTI_ACTIVITY_KIND_RUNTIME.eventClass" not in refused
    assert len(refused) < 30, refused


def test_the_calls_of_a_file_without_event_classes_count(tmp_path: Path) -> None:
    path = TraceBuilder(form="nsys").launch("k", 5_000).launch("k", 5_000).write(tmp_path / "run.sqlite")
    with sqlite3.connect(path) as file:
        file.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN eventClass")
    file.close()
    with Trace.open(path) as trace:
        (calls,) = [r.rows for r in info(trace).recorded if r.key == "calls"]
    assert calls == 2


def test_times_as_text_are_read_as_whole_numbers_or_left_out(tmp_path: Path) -> None:
    """SQLite makes 13 of the text 13:25:29."""
    builder = TraceBuilder(form="nsys")
    for _ in range(3):
        builder.launch("k", 5_000)
    path = builder.write(tmp_path / "run.sqlite")
    with sqlite3.connect(path) as file:
        # A table that was made by hand: its columns have no types, so texts stay texts.
        file.execute("CREATE TABLE made AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL")
        names = [row[1] for row in file.execute("PRAGMA table_info(made)")]
        file.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        file.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({', '.join(names)})")
        file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT * FROM made")
        file.execute(
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = CAST(start AS TEXT), end = CAST(end AS TEXT)"
        )
        file.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = '13:25:29' WHERE rowid = 2")
    file.close()
    with Trace.open(path) as trace:
        assert trace.operations.duration_ns.tolist() == [5_000, 5_000]
        assert trace.repairs == {"GPU operations at impossible times (skipped)": 1}
