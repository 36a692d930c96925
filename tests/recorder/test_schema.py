# SPDX-License-Identifier: Apache-2.0
"""A recording has the tables of a real nsys export, column by column, and numbers that mean the same."""

from __future__ import annotations

import csv
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from profiling_lab.recording.spool import global_tid
from profiling_lab.recording.tables.schema import NSYS_TABLES, create_table, enum_rows

HERE = Path(__file__).resolve().parent

Columns = list[tuple[str, str, bool, bool]]

# nsys 2025.3 (schema 3.20) had fewer columns in these; 3.25's are known from its exporter's documentation.
GREW_AFTER_3_20 = {
    "CUPTI_ACTIVITY_KIND_KERNEL", "TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_SESSION_START_TIME",
}  # fmt: skip


def columns(file: sqlite3.Connection, table: str) -> Columns:
    rows = file.execute(f"PRAGMA table_info({table})")
    return [(name, kind, bool(not_null), bool(key)) for _, name, kind, not_null, _, key in rows]


@pytest.fixture(scope="module")
def ours() -> sqlite3.Connection:
    file = sqlite3.connect(":memory:")
    for name in NSYS_TABLES:
        file.execute(create_table(name))
    return file


def test_tables_equal_the_committed_dump_of_nsys_schema(ours: sqlite3.Connection) -> None:
    expected: dict[str, Columns] = {}
    for line in (HERE / "nsys_schema.txt").read_text().splitlines():
        table, name, kind, not_null, key = line.split("|")
        expected.setdefault(table, []).append((name, kind, not_null == "1", key == "1"))
    assert {name: columns(ours, name) for name in NSYS_TABLES} == expected


def test_tables_equal_real_exports(ours: sqlite3.Connection, captures: Path) -> None:
    compared = set()
    for export, schema in {"fsdp_inference_2xh100": "3.25", "python_backtrace_h200": "3.20"}.items():
        with sqlite3.connect(f"file:{captures / export}.sqlite?mode=ro", uri=True) as theirs:
            for table in NSYS_TABLES:
                real = columns(theirs, table)
                if not real or (schema == "3.20" and (table in compared or table in GREW_AFTER_3_20)):
                    continue
                assert columns(ours, table) == real, table
                compared.add(table)
    without = {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_CUDA_CONTEXT_INFO"}
    assert set(NSYS_TABLES) - compared == without, "every table that a real export has was compared"


def test_enums_equal_a_real_export(captures: Path) -> None:
    path = captures / "fsdp_inference_2xh100.sqlite"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as theirs:
        names = [n for (n,) in theirs.execute("SELECT name FROM sqlite_master WHERE name LIKE 'ENUM_%'")]
        assert set(enum_rows()) == set(names)
        for name, rows in enum_rows().items():
            assert rows == theirs.execute(f"SELECT id, name, label FROM {name} ORDER BY id").fetchall()


def test_a_recording_has_what_readers_look_at(run: Any, query: Any) -> None:
    run("""
with profiling_lab.record(OUT): fake.kernel("a")
""")
    tables = {name for (name,) in query("SELECT name FROM sqlite_master")}
    for name in tables - {t for t in tables if t.startswith(("PYREC_", "ENUM_"))}:
        assert name in NSYS_TABLES
    assert {n for n in tables if n.startswith("ENUM_")} == set(enum_rows())
    empty = [n for n in tables if query(f"SELECT count(*) FROM {n}") == [(0,)]]
    assert empty == [], "tables without rows are absent, as in nsys' exports"
    export = dict(query("SELECT name, value FROM META_DATA_EXPORT"))
    assert export["EXPORT_SCHEMA_VERSION"] == "3.25.0" and export["EXPORT_PRODUCT_NAME"] == "profiling_lab"
    start, clock = query("SELECT utcEpochNs, systemClockNs FROM TARGET_INFO_SESSION_START_TIME")[0]
    first, last, duration = query("SELECT startTime, stopTime, duration FROM ANALYSIS_DETAILS")[0]
    assert last - first == duration > 0 and first == clock and start > 1_700_000_000 * 10**9
    times = query("SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_RUNTIME")[0]
    assert 0 <= times[0] < times[1] <= duration


def test_ids_of_threads_are_packed_as_nsys_packs_them(run: Any, query: Any) -> None:
    assert global_tid(0x90, 0x90) == 0x0001_000090_000090  # nsys' own example
    for process, thread in [(1, 1), ((1 << 22) + 3, (1 << 22) + 4), ((1 << 24) - 1, (1 << 24) - 1)]:
        packed = global_tid(process, thread)
        assert (packed // 0x1000000 % 0x1000000, packed % 0x1000000) == (process, thread)
    done = run("""
with profiling_lab.record(OUT): fake.kernel("a")
print(os.getpid())
""")
    process = int(done.stdout)
    unpacked = "SELECT {0} / 0x1000000 % 0x1000000, {0} % 0x1000000 FROM CUPTI_ACTIVITY_KIND_{1}"
    assert query(unpacked.format("globalTid", "RUNTIME")) == [(process, process)]
    assert query(unpacked.format("globalPid", "KERNEL")) == [(process, 0)]
    assert query("SELECT pid, globalPid FROM PROCESSES") == [(process, global_tid(process, 0))]
    assert (process,) in query("SELECT globalTid % 0x1000000 FROM ThreadNames")


def test_the_statements_of_nsys_stats_run_on_it(run: Any, query: Any) -> None:
    run("""
with profiling_lab.record(OUT):
    for _ in range(4): fake.kernel("_ZN2at6native4fillIfEEvPT_i", ns=100)
    fake.kernel("other", ns=50)
""")
    summary = query("""
        SELECT round(sum(k.end - k.start) * 100.0 /
                     (SELECT sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL), 1),
               sum(k.end - k.start), count(*), demangled.value, short.value
        FROM CUPTI_ACTIVITY_KIND_KERNEL k
        JOIN StringIds demangled ON demangled.id = k.demangledName
        JOIN StringIds short ON short.id = k.shortName
        GROUP BY k.demangledName ORDER BY 2 DESC""")
    assert summary == [
        (88.9, 400, 4, "void at::native::fill<float>(float*, int)", "fill"), (11.1, 50, 1, "other", "other"),
    ]  # fmt: skip
    api = query("""
        SELECT s.value, count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON r.nameId = s.id
        JOIN CUPTI_ACTIVITY_KIND_KERNEL k ON k.correlationId = r.correlationId
         AND k.globalPid = r.globalTid & 0x0000FFFFFF000000 | 0x1000000000000 GROUP BY 1""")
    assert api == [("cudaLaunchKernel_v7000", 5)]
    stream = query("""
        SELECT e.label FROM CUPTI_ACTIVITY_KIND_KERNEL k
        JOIN TARGET_INFO_CUDA_STREAM t ON t.streamId = k.streamId AND t.contextId = k.contextId
        JOIN ENUM_CUPTI_STREAM_TYPE e ON e.id = t.flag GROUP BY 1""")
    assert len(stream) == 1


# Report, and of its rows the columns that are known beforehand.
NSYS_REPORTS = {
    "cuda_gpu_kern_sum": {("400", "4", "void at::native::fill<float>(float*, int)"), ("50", "1", "other")},
    "cuda_api_sum": {("5", "cudaLaunchKernel"), ("2", "cudaMemcpyAsync")},
    "cuda_gpu_mem_size_sum": {("2", "[CUDA memcpy Host-to-Device]")},
}


@pytest.mark.parametrize("report", NSYS_REPORTS)
def test_nsys_stats_reads_it(run: Any, tmp_path: Path, report: str) -> None:
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed")
    run("""
with profiling_lab.record(OUT):
    for _ in range(4): fake.kernel("_ZN2at6native4fillIfEEvPT_i", ns=100)
    fake.kernel("other", ns=50)
    for _ in range(2): fake.copy()
""")
    command = ["nsys", "stats", "--report", report, "--format", "csv", "--quiet", "--force-export=false"]
    done = subprocess.run(
        [*command, "out.sqlite"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=True
    )
    rows = {tuple(row) for row in csv.reader(done.stdout.splitlines()) if len(row) > 3}
    for wanted in NSYS_REPORTS[report]:
        assert any(set(wanted) <= set(row) for row in rows), done.stdout
