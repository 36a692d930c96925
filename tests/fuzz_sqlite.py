# SPDX-License-Identifier: Apache-2.0
"""Damages traces in the nsys schema at random and asks every command about them.

    python tests/fuzz_sqlite.py --minutes 10            as long as you like; exits with 1 after a crash
    python tests/fuzz_sqlite.py --seed 4711 --count 1   one case again

An answer is exit code 0, 1, 3 or 4 and, for an error, one line on stderr. Anything else is a bug.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from builders import TraceBuilder
from damage import WILD, flip_bytes
from table_folders import to_folder

from profiling_lab.cli import main
from profiling_lab.trace.nsys import sqlite_file

ASKED = [
    *("info", "lines", "kernels", "steps", "gaps", "overlap", "check", "apis", "copies", "syncs", "ranges"),
    "streams",
]
MORE = {
    "lines": ["--by", "kernel"],
    "kernels": ["--limit", "0"],
    "ranges": ["--format", "csv"],
    "gaps": ["--format", "md"],
}
ODD: tuple[Any, ...] = (
    *WILD, -(2**61), 2, 3, 34, 59, 60, 67, 75, 2**24, 2**48, "", "N/A", ", seq = ", "nan",
    b"", 1e300, float("inf"), ", seq = 99999999999999999999", '{"Python Backtrace on CUDA":{"Frames":{}}}',
    '{"Python Backtrace on CUDA":{"Frames":[{"Function":1,"File":"x","Line":"y"}]}}',
)  # fmt: skip
TYPES = (pa.int64(), pa.uint64(), pa.int32(), pa.string(), pa.binary(), pa.float64(), pa.bool_(), pa.null())
SLOW_S = 60

Damage = Callable[[random.Random, Path], Path]


def everything(form: str) -> TraceBuilder:
    builder = TraceBuilder(form=form)
    for i in range(20):
        builder.launch(f"k{i % 3}", 100, stack=f"a.py:{i} f > b.py:{i % 4} g", peek=i)
        builder.launch("bwd", 50, node=i // 2, node_name="MmBackward0", thread=2, peek=0)
        builder.range(f"aten::mm, seq = {i}", builder.now_ns, builder.now_ns + 4000)
    builder.copy("HtoD", 10).memset(3)
    builder.operation("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", 40, {"graphId": 3}, api="cudaGraphLaunch_v10000")
    native = {"module": builder.string("libtorch.so"), "stackDepth": 0}
    builder.row(
        "CUDA_CALLCHAINS", id=0, symbol=builder.string("torch::autograd::Engine::thread_main"), **native
    )
    builder.row("NVTX_EVENTS", start=0, eventType=75, text="Python Backtrace on CUDA", domainId=1)
    builder.row("ThreadNames", nameId=builder.string("python"), priority=20, globalTid=builder.tid(1))
    builder.row("PROCESSES", globalPid=builder.tid(1), pid=100, name="python")
    builder.row("PROFILER_OVERHEAD", start=0, end=70, nameId=0, overheadType=3)
    builder.row("TARGET_INFO_GPU", vmId=1, id=0, name="NVIDIA H200", smCount=132, computeMajor=9)
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000 * 10**9)
    builder.row("ANALYSIS_DETAILS", globalVid=1, duration=5_000, startTime=0, stopTime=5_000)
    return builder.row("DIAGNOSTIC_EVENT", timestamp=0, timestampType=1, source=1, severity=2, text="lost")


def shuffle_pages(dice: random.Random, path: Path) -> Path:
    """Whole pages swapped, repeated, emptied or cut off."""
    content, page = bytearray(path.read_bytes()), 4096
    pages = max(len(content) // page, 1)
    for _ in range(dice.choice((1, 2, 5))):
        a, b = (dice.randrange(pages) * page for _ in range(2))
        action = dice.randrange(4)
        if action == 0:
            content[a : a + page], content[b : b + page] = content[b : b + page], content[a : a + page]
        elif action == 1:
            content[a : a + page] = content[b : b + page]
        elif action == 2:
            content[a : a + page] = bytes(page)
        elif len(content) > 2 * page:
            del content[-dice.randrange(1, page) :]
    path.write_bytes(content)
    return path


def change_cells(dice: random.Random, path: Path) -> Path:
    """Values of any type where integers and texts belong; rows repeated and removed."""
    with sqlite3.connect(path) as file:
        file.text_factory = bytes
        for _ in range(dice.choice((1, 4, 12))):
            table = dice.choice(_tables(file))
            column = dice.choice(_columns(file, table))
            every, rest = dice.choice((1, 2, 5, 1000)), dice.randrange(5)
            statement = dice.choice(
                (f'UPDATE "{table}" SET "{column}" = ? WHERE rowid % {every} = {rest % every}',) * 6
                + (f'INSERT INTO "{table}" SELECT * FROM "{table}" WHERE ? IS NOT 12345 LIMIT 30',)
                + (f'DELETE FROM "{table}" WHERE rowid % {every} = 0 AND ? IS NOT 12345',)
            )
            with contextlib.suppress(sqlite3.Error):  # SQLite itself refuses some
                file.execute(statement, (dice.choice(ODD),))
    file.close()
    return path


def change_schema(dice: random.Random, path: Path) -> Path:
    """Tables and columns dropped, renamed and exchanged."""
    with sqlite3.connect(path) as file:
        file.text_factory = bytes
        for _ in range(dice.choice((1, 3, 6))):
            table = dice.choice(_tables(file))
            column, other = (dice.choice(_columns(file, table)) for _ in range(2))
            statement = dice.choice(
                (
                    f'DROP TABLE "{table}"',
                    f'ALTER TABLE "{table}" DROP COLUMN "{column}"',
                    f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO {dice.choice(("x", "rowid", "oid"))}',
                    f'ALTER TABLE "{table}" RENAME TO "{table}_V{dice.randint(2, 12)}"',
                    f'CREATE TABLE "{table}_V{dice.randint(2, 9)}" AS SELECT "{column}" FROM "{table}"',
                    f'CREATE TABLE swapped AS SELECT "{other}" AS "{column}" FROM "{table}";'
                    f'DROP TABLE "{table}"; ALTER TABLE swapped RENAME TO "{table}"',
                    f'CREATE TABLE kept AS SELECT * FROM "{table}"; DROP TABLE "{table}";'
                    f'CREATE VIEW "{table}" AS SELECT * FROM kept',
                )
            )
            with contextlib.suppress(sqlite3.Error):
                file.executescript(statement)
    file.close()
    return path


def folder_bytes(dice: random.Random, path: Path) -> Path:
    folder = to_folder(path, path.with_suffix(""), dice.choice(("parquet", "arrow", "arrow stream")))
    for _ in range(dice.choice((1, 2))):
        flip_bytes(dice, dice.choice(sorted(folder.iterdir())))
    return folder


def folder_values(dice: random.Random, path: Path) -> Path:
    """Columns of other types, shorter tables, tables that are missing."""
    folder = to_folder(path, path.with_suffix(""))
    for _ in range(dice.choice((1, 3, 6))):
        files = sorted(folder.iterdir())
        file = dice.choice(files)
        rows = pa.parquet.read_table(file)
        if not rows.num_columns:
            continue
        at = dice.randrange(rows.num_columns)
        size, value = rows.num_rows, dice.choice(ODD)
        column = rows.column(at)
        try:
            column = (
                pa.repeat(pa.scalar(value), size) if dice.randrange(2) else column.cast(dice.choice(TYPES))
            )
        except (pa.ArrowException, OverflowError):
            column = pa.array([[1, 2]] * size)
        action = dice.randrange(5)
        if action == 0 and len(files) > 1:
            file.unlink()
            continue
        changed = (
            rows.slice(0, size // 2) if action == 1
            else rows.remove_column(at) if action == 2
            else rows.set_column(at, rows.column_names[at], column)
        )  # fmt: skip
        pa.parquet.write_table(changed, file)
    return folder


DAMAGES: tuple[Damage, ...] = (
    flip_bytes, shuffle_pages, change_cells, change_cells, change_schema, folder_bytes, folder_values,
)  # fmt: skip


def _tables(file: sqlite3.Connection) -> list[str]:
    rows = file.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return [name.decode() for (name,) in rows]


def _columns(file: sqlite3.Connection, table: str) -> list[str]:
    return [row[1].decode() for row in file.execute(f'PRAGMA table_info("{table}")')] or ["x"]


def case(seed: int, folder: Path, verbs: int) -> tuple[str, Counter[int]]:
    """Damage one trace and ask `verbs` commands about it: what was done, and how often each exit code came.

    Raises AssertionError, or whatever a command let through.
    """
    dice = random.Random(seed)
    damage = dice.choice(DAMAGES)
    with reading_in_parts(dice.randrange(2) == 1):
        return damage.__name__, _ask(dice, damage, folder, verbs)


@contextlib.contextmanager
def reading_in_parts(small: bool) -> Iterator[None]:
    """Pieces of three rows, as if the tables were large."""
    usual = sqlite_file._PART_ROWS
    sqlite_file._PART_ROWS = 3 if small else usual
    try:
        yield
    finally:
        sqlite_file._PART_ROWS = usual


def _ask(dice: random.Random, damage: Damage, folder: Path, verbs: int) -> Counter[int]:
    path = damage(dice, everything(dice.choice(("recorder", "nsys"))).write(folder / "t.sqlite"))
    codes: Counter[int] = Counter()
    for verb in dice.sample(ASKED, min(verbs, len(ASKED))):
        more = MORE.get(verb, []) if dice.randrange(3) == 0 else []
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([verb, str(path), *(["--format", "json"] if "--format" not in more else []), *more])
        assert code in (0, 1, 3, 4), f"{verb}: exit code {code}"
        assert code < 3 or len(err.getvalue().splitlines()) <= 1, f"{verb}: {err.getvalue()}"
        if code < 3 and "--format" not in more:
            json.loads(out.getvalue())
        codes[code] += 1
    return codes


def _too_slow(*_: object) -> None:
    raise TimeoutError(f"no answer within {SLOW_S} s")


def fuzz(seconds: float, first: int, count: int | None) -> int:
    signal.signal(signal.SIGALRM, _too_slow)
    until = time.monotonic() + seconds
    seed, crashes = first, 0
    kinds: Counter[str] = Counter()
    codes: Counter[int] = Counter()
    while (count is None and time.monotonic() < until) or (count is not None and seed < first + count):
        with tempfile.TemporaryDirectory() as folder:
            signal.alarm(SLOW_S)
            try:
                kind, found = case(seed, Path(folder), verbs=len(ASKED))
                kinds[kind] += 1
                codes += found
            except Exception:
                crashes += 1
                print(f"seed {seed}:\n{traceback.format_exc(limit=-6)}", flush=True)
            finally:
                signal.alarm(0)
        seed += 1
    answers = sum(codes.values())
    print(f"{seed - first} files, {answers} answers, {crashes} crashes")
    print("files by damage:", dict(kinds))
    print("answers by exit code:", dict(sorted(codes.items())))
    return 1 if crashes else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int)
    args = parser.parse_args()
    sys.exit(fuzz(60 * args.minutes, args.seed, args.count))
