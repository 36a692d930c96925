# SPDX-License-Identifier: Apache-2.0
"""Malformed input through the command line: one clear sentence and exit code 4, or an answer that counts what
was repaired; never a traceback, never a wait without end.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from builders import TraceBuilder
from package_root import PACKAGE_ROOT

from profiling_lab.cli import main
from profiling_lab.trace import Trace

STACK = "/app/train.py:9 main"


def trace(path: Path, **how: Any) -> Path:
    builder = TraceBuilder(**how)
    for i in range(200):
        builder.launch(f"k{i % 3}", 1000, stack=STACK)
    return builder.write(path)


def run(path: Path, verb: str = "lines") -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([verb, str(path), "--format", "json"])
    return code, out.getvalue(), err.getvalue()


def change(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as file:
        for statement in statements:
            file.execute(statement)
    file.close()
    return path


def truncated(path: Path) -> None:
    trace(path)
    os.truncate(path, path.stat().st_size * 2 // 3)


def no_page_left(path: Path) -> None:
    trace(path)
    os.truncate(path, 100)


def magic_and_noise(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\x00" + random.Random(1).randbytes(1 << 20))


def another_program(path: Path) -> None:
    change(path, "CREATE TABLE moz_places (id INTEGER, url TEXT)", "INSERT INTO moz_places VALUES (1, 'x')")


def table_without_times(path: Path) -> None:
    change(trace(path), "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN start")


def calls_without_times(path: Path) -> None:
    change(trace(path), "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN end")


def encrypted(path: Path) -> None:
    trace(path)
    content = path.read_bytes()
    path.write_bytes(content[:16] + bytes(b ^ 0x5A for b in content[16:]))


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/null")


def circle(path: Path) -> None:
    path.symlink_to(path)


def folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("nothing")


def one_parquet_file(path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"start": [1]}), path)


def broken_parquet_folder(path: Path) -> None:
    path.mkdir()
    (path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")


def unreadable_log(path: Path) -> None:
    """A write-ahead log, and no way to make the shared memory that reading it takes."""
    trace(path)
    Path(f"{path}-wal").write_bytes(random.Random(2).randbytes(5000))
    change_mode = sqlite3.connect(path)
    change_mode.execute("PRAGMA journal_mode = WAL")
    change_mode.close()
    Path(f"{path}-wal").write_bytes(random.Random(2).randbytes(5000))
    Path(f"{path}-shm").mkdir()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (truncated, "truncated"),
        (no_page_left, "truncated"),
        (magic_and_noise, "cannot be read as SQLite|truncated"),
        (another_program, "not a GPU trace"),
        (table_without_times, "table CUPTI_ACTIVITY_KIND_KERNEL has no column start"),
        (calls_without_times, "table CUPTI_ACTIVITY_KIND_RUNTIME has no column end"),
        (encrypted, "cannot be read as SQLite|truncated"),
        (pipe, "is a pipe or a device"),
        (device, "is a pipe or a device"),
        (circle, "there is no such file|cannot be read"),
        (folder, "is a directory without the files of `nsys export"),
        (one_parquet_file, "is not a trace"),
        (broken_parquet_folder, "KERNEL.parquet"),
        (unreadable_log, "write-ahead log"),
    ],
)
@pytest.mark.parametrize("verb", ["info", "lines", "check"])
def test_one_sentence_and_exit_code_4(
    tmp_path: Path, make: Callable[[Path], None], says: str, verb: str
) -> None:
    if make is unreadable_log and verb != "info":
        pytest.skip("SQLite itself tries for ten seconds: once is enough")
    path = tmp_path / "t.sqlite"
    make(path)
    code, out, err = run(path, verb)
    if code != 4 and verb == "info" and "_without_times" in make.__name__:
        return  # which tables there are can be said without the times
    assert (code, out) == (4, ""), err
    assert err.count("\n") == 1 and re.search(says, err), err


def test_a_hundred_megabytes_of_noise_are_refused_at_once(tmp_path: Path) -> None:
    """In a process of its own, whose memory can be told."""
    noise = random.Random(3).randbytes(1 << 20)
    for name, start in (("noise", b""), ("as_json", b"{"), ("as_sqlite", b"SQLite format 3\x00")):
        path = tmp_path / name
        with path.open("wb") as file:
            file.write(start)
            for _ in range(100):
                file.write(noise)
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                # Not getrusage: its peak counts what the parent had when it forked.
                "import sys; from profiling_lab.cli import main; code = main(['lines', sys.argv[1]]); "
                "status = open('/proc/self/status').read().splitlines(); "
                "print(next(line.split()[1] for line in status if line.startswith('VmHWM'))); "
                "sys.exit(code)",
                str(path),
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        )
        assert done.returncode == 4, done.stderr
        assert done.stderr.count("\n") == 1 and path.name in done.stderr
        assert int(done.stdout) < 500 * 1024, "kilobytes: no more than three times the file"
        path.unlink()


def test_rows_without_a_time_are_left_out_and_counted(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("a", 10).launch("b", 20).launch("c", 30)
    path = builder.write(tmp_path / "t.sqlite")
    change(
        path,
        "CREATE TABLE loose AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL",
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "ALTER TABLE loose RENAME TO CUPTI_ACTIVITY_KIND_KERNEL",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = NULL WHERE correlationId = 1",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = NULL WHERE correlationId = 3",
    )
    with Trace.open(path) as read:
        assert read.operations.duration_ns.tolist() == [20]
        assert read.repairs == {"GPU operations at impossible times (skipped)": 2}


def test_a_log_that_is_no_log_is_not_read(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.sqlite")
    expected = json.loads(run(path)[1])["data"]
    Path(f"{path}-wal").write_bytes(random.Random(4).randbytes(9000))
    code, out, _ = run(path)
    assert code == 0 and json.loads(out)["data"] == expected


def test_ids_at_the_ends_of_64_bits(tmp_path: Path) -> None:
    ends = (-(2**63), 2**63 - 1, -1, 0)
    builder = TraceBuilder()
    for i, end in enumerate(ends):
        builder.launch(f"k{i}", 100, stack=STACK, correlation=end, stream=end)
    code, out, err = run(builder.write(tmp_path / "t.sqlite"))
    assert code == 0, err
    (row,) = json.loads(out)["data"]["rows"]
    assert row["kernels"] == 4 and row["gpu_ns"] == 400


def test_overlapping_ranges_are_dropped_and_said(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys").launch("a", 100).launch("b", 100)
    builder.range("outer", 900_000, 1_003_500).range("crossing", 1_001_500, 1_300_000)
    path = builder.write(tmp_path / "t.sqlite")
    with Trace.open(path) as read:
        assert read.attribution.dropped_ranges == 1
    assert "1 NVTX ranges overlap others without nesting" in run(path, "kernels")[1]


def test_thousands_of_equal_correlation_ids(tmp_path: Path) -> None:
    """Per id one call of each of several processes: every operation finds its own."""
    builder = TraceBuilder()
    for i in range(100):
        for pid in (100, 200, 300):
            builder.launch("k", 100 + pid, pid=pid, correlation=i, stack=f"/app/{pid}.py:{pid} main")
    code, out, _ = run(builder.write(tmp_path / "t.sqlite"))
    rows = {row["line"]: row["gpu_ns"] for row in json.loads(out)["data"]["rows"]}
    assert code == 0 and rows == {100: 20_000, 200: 30_000, 300: 40_000}
