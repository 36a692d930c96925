# SPDX-License-Identifier: Apache-2.0
"""Exports of nsys from 2021 to 2026: tables and columns came, moved and went; the answers stay."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder

from profiling_lab.cli import main
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import MemoryKind, OverheadKind

STACK = "/app/train.py:9 main > /app/model.py:4 Net.forward"

# What the statements undo is younger than the year.
ERAS = {
    "early 2021: GPUs by device number, facts of the export under another name": (
        "ALTER TABLE TARGET_INFO_GPU RENAME COLUMN id TO deviceId",
        "ALTER TABLE TARGET_INFO_GPU RENAME TO TARGET_INFO_CUDA_GPU",
        "ALTER TABLE META_DATA_EXPORT RENAME TO EXPORT_META_DATA",
        "DROP TABLE TARGET_INFO_SESSION_START_TIME",
    ),
    "2021: no green contexts, ranges neither in domains nor with texts by id": (
        *(
            f"ALTER TABLE CUPTI_ACTIVITY_KIND_{name} DROP COLUMN greenContextId"
            for name in ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION")
        ),
        "ALTER TABLE NVTX_EVENTS DROP COLUMN jsonTextId",
        "DELETE FROM NVTX_EVENTS WHERE eventType = 75",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN textId",
    ),
    "2022: copies name the source of the copy, not the device": (
        "ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY RENAME COLUMN deprecatedSrcId TO srcId",
    ),
    "before 2024: the kind of a synchronization in its old column": (
        "UPDATE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION SET deprecatedSyncType = syncType",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION DROP COLUMN syncType",
    ),
    "before 2025: no table of CUPTI's overheads, no kinds in the profiler's own": (
        "DROP TABLE CUPTI_ACTIVITY_KIND_OVERHEAD",
        "ALTER TABLE PROFILER_OVERHEAD DROP COLUMN overheadType",
    ),
    "tables with a version in their name": tuple(
        statement
        for name in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION")
        for table in (f"CUPTI_ACTIVITY_KIND_{name}",)
        for statement in (
            f"CREATE TABLE {table}_V2 AS SELECT * FROM {table} LIMIT 1",
            f"ALTER TABLE {table} RENAME TO {table}_V10",
        )
    ),
    "an older table next to the newest": (
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL_V3 AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL",
        "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId > 3",
    ),
    "2026: every NVTX event has an id, and there are unknown tables": (
        "ALTER TABLE NVTX_EVENTS ADD COLUMN eventId INTEGER",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN tensorSizeMinusOneElements TEXT",
        "CREATE TABLE NVTXT_EVENTS (start INTEGER, text TEXT)",
        "INSERT INTO NVTXT_EVENTS VALUES (1, 'x')",
    ),
}  # fmt: skip
SAME = ("lines", "kernels", "steps", "gaps", "overlap", "apis", "copies", "syncs", "streams")
# An era that lacks what a command tells.
UNLIKE = {("before 2025", "gaps"), ("before 2025", "apis")}


def modern(path: Path) -> Path:
    builder = TraceBuilder(form="nsys")
    for i in range(12):
        builder.launch(f"k{i % 3}", 40_000, stack=STACK)
        builder.gap(30_000)
        builder.range(f"aten::mm, seq = {i}, op_id = {i}", builder.now_ns - 35_000, builder.now_ns - 31_000)
    builder.copy("HtoD", 10_000, source=0, target=2).memset(300, memory=2)
    call = builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][0]
    sync = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": builder.tid(1) >> 24 << 24}
    builder.call("cudaStreamSynchronize_v3020", correlation=900, call_ns=70_000).gap(70_000)
    wait = builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]
    builder.row(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        start=wait["start"] + 100,
        end=wait["end"] - 100,
        correlationId=900,
        syncType=3,
        eventId=0,
        **sync,
    )
    builder.launch("k0", 40_000, stack=STACK)
    builder.row("NVTX_EVENTS", start=0, eventType=75, text="Python Backtrace on CUDA", domainId=1)
    builder.row("TARGET_INFO_GPU", vmId=1, id=0, name="NVIDIA A100", smCount=108, computeMajor=8)
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000 * 10**9)
    start = {"start": call["start"] + 300, "end": call["start"] + 900, "globalTid": call["globalTid"]}
    builder.row("PROFILER_OVERHEAD", nameId=0, overheadType=3, **start)
    builder.row("CUPTI_ACTIVITY_KIND_OVERHEAD", nameId=0, overheadType=8, **start)
    path = builder.write(path)
    return change(
        path,
        "ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY ADD COLUMN deprecatedSrcId INTEGER",
        *(
            f"ALTER TABLE CUPTI_ACTIVITY_KIND_{name} ADD COLUMN greenContextId INTEGER"
            for name in ("MEMCPY", "MEMSET", "SYNCHRONIZATION")
        ),
    )


def change(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as file:
        for statement in statements:
            file.execute(statement)
    file.close()
    return path


def answer(verb: str, path: Path) -> Any:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([verb, str(path), "--format", "json"]) == 0, verb
    return json.loads(out.getvalue())


@pytest.mark.parametrize("era", ERAS)
def test_an_older_export_gives_the_same_answers(tmp_path: Path, era: str) -> None:
    today = modern(tmp_path / "t.sqlite")
    expected = {verb: answer(verb, today)["data"] for verb in SAME}
    change(today, *ERAS[era])
    for verb in SAME:
        if not any(era.startswith(unlike) and verb == command for unlike, command in UNLIKE):
            assert answer(verb, today)["data"] == expected[verb], verb


def test_the_facts_of_an_export_of_2021(tmp_path: Path) -> None:
    path = change(modern(tmp_path / "t.sqlite"), *next(iter(ERAS.values())))
    facts = answer("info", path)
    assert "NVIDIA A100" in json.dumps(facts) and "3.25.0" in json.dumps(facts)


def test_overheads_of_every_age(tmp_path: Path) -> None:
    path = modern(tmp_path / "t.sqlite")
    with Trace.open(path) as trace:
        kinds = [OverheadKind.BUFFER_FLUSH, OverheadKind.COMMAND_BUFFER_FULL]
        assert trace.overheads.kind.tolist() == kinds
    change(path, *ERAS[next(era for era in ERAS if era.startswith("before 2025"))])
    with Trace.open(path) as trace:
        assert trace.overheads.kind.tolist() == [OverheadKind.PROFILER], "its own, of no known kind"


def test_what_an_old_export_does_not_tell_is_unknown_not_zero(tmp_path: Path) -> None:
    path = change(
        modern(tmp_path / "t.sqlite"),
        "ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN srcKind",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN dstKind",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_MEMSET DROP COLUMN memKind",
    )
    with Trace.open(path) as trace:
        operations = trace.operations
        copy = operations.size_bytes > 0
        assert set(operations.source_memory[copy].tolist()) == {MemoryKind.UNKNOWN}, "0 would be pageable"
        assert set(operations.target_memory[copy].tolist()) == {MemoryKind.UNKNOWN}


def test_a_kernel_table_of_thirteen_columns(tmp_path: Path) -> None:
    """The least that other tools write: kernels and names, nothing else."""
    path = tmp_path / "t.sqlite"
    columns = "start end deviceId streamId correlationId globalPid demangledName shortName gridX gridY gridZ"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        file.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, "gemm<float>"), (2, "gemm")])
        names = (*columns.split(), "blockX", "blockY")
        file.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({', '.join(f'{n} INTEGER' for n in names)})")
        file.executemany(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * len(names))})",
            [(1000 * i, 1000 * i + 400, 0, 7, i, 5 << 24, 1, 2, 1, 1, 1, 32, 1) for i in range(10)],
        )
    file.close()
    row = answer("kernels", path)["data"]["rows"][0]
    assert (row["name"], row["short_name"], row["count"], row["total_ns"]) == (
        "gemm<float>",
        "gemm",
        10,
        4000,
    )
    assert answer("overlap", path)["coverage"]["busy_ns"] == 4000
    assert answer("gaps", path)["trace"]["idle_ns"] == 9 * 600
    assert answer("steps", path)["data"]["rows"][0]["wall_ns"] == 9400
    assert answer("info", path)["data"]["rows"]


def test_an_empty_export_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = TraceBuilder(form="nsys").write(tmp_path / "t.sqlite")
    for verb in SAME:
        assert main([verb, str(path)]) == 3, verb
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and ("--trace=cuda" in said or " holds n" in said), verb


def test_a_capture_without_ranges_and_with_a_diagnosis(tmp_path: Path) -> None:
    """An old GPU: nothing marked, and nsys says by what it measured."""
    builder = TraceBuilder(form="nsys").launch("gemm", 400).launch("gemm", 600)
    legacy = "CUDA hardware tracing is not supported. A legacy (software instrumented) trace was collected."
    told = {"timestamp": 0, "timestampType": 1, "source": 1}
    builder.row("DIAGNOSTIC_EVENT", severity=1, text=legacy, **told)
    builder.row("DIAGNOSTIC_EVENT", severity=1, text="Buffers flushed", **told)
    builder.row("PROFILER_OVERHEAD", start=0, end=70, nameId=0, overheadType=3)
    path = builder.write(tmp_path / "t.sqlite")
    assert answer("kernels", path)["data"]["rows"][0]["total_ns"] == 1000
    facts = json.dumps(answer("info", path))
    assert "legacy (software instrumented)" in facts and "Buffers flushed" not in facts
