# SPDX-License-Identifier: Apache-2.0
"""Make a small, shareable copy of a recording (ours or an nsys SQLite export), without anything about the
machine's owner.

    python benchmarks/reduce_trace.py python_profile.sqlite small.sqlite --strip /path/to/the/exercise

Kept: GPU operations, the API calls that belong to them, NVTX ranges, their Python stacks, the text of the
stripped program's own lines, and what names the GPU and the versions; with --samples also the samples of
Python stacks. Dropped: environment, arguments, other processes, native call chains, native CPU samples,
scheduling, the GPU's serial number. Folders in front of packages, of the standard library and of the stripped
program are cut off; `--called train.py` gives the stripped program's file another name, so that its name does
not tell what is wrong with it.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sqlite3
import sys
from pathlib import Path

KEPT = (
    "StringIds",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
    "NVTX_PAYLOAD_SCHEMAS",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
    "NVTX_PAYLOAD_ENUMS",
    "NVTX_PAYLOAD_ENUM_ENTRIES",
    "ThreadNames",
    "PROCESSES",
    "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_CUDA_CONTEXT_INFO",
    "TARGET_INFO_CUDA_STREAM",
    "TARGET_INFO_SYSTEM_ENV",
    "TARGET_INFO_SESSION_START_TIME",
    "ANALYSIS_DETAILS",
    "META_DATA_EXPORT",
    "PYREC_FRAME",
    "PYREC_STACK",
    "PYREC_LAUNCH",
    "PYREC_META",
    "PYREC_WINDOW",
    "PYREC_GRAPH_NODE",
    "PYREC_HOST_EVENT",
    "PYREC_SOURCE",
    "PYREC_WORK",
    "PYREC_COUNTERS",
    "ENUM_NSYS_EVENT_TYPE",
    "ENUM_NSYS_EVENT_CLASS",
    "ENUM_CUDA_MEMCPY_OPER",
    "ENUM_CUDA_MEM_KIND",
    "ENUM_CUPTI_SYNC_TYPE",
)
# Every column that holds a row number of StringIds.
STRING_COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("demangledName", "shortName", "mangledName"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId",),
    "NVTX_EVENTS": ("textId", "jsonTextId"),
    "ThreadNames": ("nameId",),
    "PYREC_FRAME": ("functionId", "fileId"),
    "PYREC_LAUNCH": ("nodeNameId",),
    "PYREC_HOST_EVENT": ("nameId",),
    "PYREC_SOURCE": ("fileId",),
    "PYREC_WORK": ("nameId", "kindId", "mathId", "shapesId"),
}
SYSTEM_FACTS = (1, 3, 205, 605)  # nameEnum of CPU cores and architecture, driver version, operating system
NATIVE_CALL_CHAIN = 67  # eventClass of the extra row that carries one
PYTHON_STACK = 34  # eventType of an NVTX row whose JSON is a Python stack
PYTHON_STACK_KEY = "Python Backtrace on CUDA"
SAMPLE_KEY = "Python Periodic Sampling"
SAMPLE_FRAMES = 32
NOT_A_SAMPLE = (
    " AND NOT EXISTS (SELECT 1 FROM StringIds s WHERE s.id = n.jsonTextId"
    f""" AND s.value LIKE '{{"{SAMPLE_KEY}%') AND coalesce(n.jsonText, '') NOT LIKE '{{"{SAMPLE_KEY}%'"""
)
HOME = re.compile(r"^.*(?=/(?:site|dist)-packages/)")
EXERCISE_COPY = re.compile(r"^.*/profiling-lab-demo-[^/]*/")
STANDARD_LIBRARY = re.compile(r"^.*(?=/lib(?:64)?/python3)")
OUR_PACKAGE = re.compile(r"^/.*/(?=profiling_lab/)")
SIZE_LIMIT_BYTES = 1_000_000


def reduce(
    source: Path,
    target: Path,
    strip: tuple[str, ...] = (),
    called: str = "",
    samples: bool = False,
    text: bool = True,
) -> int:
    """Write the small copy and return its size in bytes. The source is not touched. `called`: the new name of
    the stripped program's file. `text`: whether the text of its lines is kept.
    """
    shutil.copyfile(source, target)
    with sqlite3.connect(target) as file:
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if table not in KEPT:
                file.execute(f'DROP TABLE "{table}"')
        have = [table for table in tables if table in KEPT]
        drop_rows(file, have, samples)
        intern_stacks(file, have)
        shorten_samples(file, have)
        drop_stacks(file, have)
        drop_sources(file, have, strip if text else ())
        drop_strings(file, have)
        shorten_paths(file, strip, called)
    file.execute("VACUUM")
    file.close()
    return target.stat().st_size


def drop_rows(file: sqlite3.Connection, have: list[str], samples: bool = False) -> None:
    """Rows that say nothing about this program's GPU work, and facts that identify a machine."""
    if "CUPTI_ACTIVITY_KIND_RUNTIME" in have:
        file.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET callchainId = NULL")
        used = [
            f"SELECT correlationId FROM {table} WHERE correlationId IS NOT NULL"
            for table in have
            if table == "PYREC_GRAPH_NODE"  # of the calls that captured it
            or (table.startswith("CUPTI_ACTIVITY_KIND_") and table != "CUPTI_ACTIVITY_KIND_RUNTIME")
        ]
        if used:
            file.execute(
                f"DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId NOT IN ({' UNION '.join(used)})"
            )
    if {"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"} <= set(have):
        # In an nsys export the extra row is also the bridge from a Python stack to its call: only it has
        # the same start.
        same = "n.start = r.start AND n.globalTid = r.globalTid"
        file.execute(
            "CREATE TEMP TABLE calls AS SELECT DISTINCT start, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        )
        file.execute("CREATE INDEX temp.calls_by_start ON calls (start, globalTid)")
        file.execute(
            f"DELETE FROM NVTX_EVENTS AS n WHERE eventType = {PYTHON_STACK}"
            f" AND NOT EXISTS (SELECT 1 FROM temp.calls r WHERE {same})" + (NOT_A_SAMPLE if samples else "")
        )
        file.execute("CREATE TEMP TABLE stacks AS SELECT DISTINCT start, globalTid FROM NVTX_EVENTS"
                     f" WHERE eventType = {PYTHON_STACK}")  # fmt: skip
        file.execute("CREATE INDEX temp.stacks_by_start ON stacks (start, globalTid)")
        file.execute(
            f"DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME AS r WHERE eventClass = {NATIVE_CALL_CHAIN}"
            f" AND NOT EXISTS (SELECT 1 FROM temp.stacks n WHERE {same})"
        )
    for table, column in (
        ("TARGET_INFO_GPU", "uuid"),
        ("TARGET_INFO_GPU", "busLocation"),
        ("TARGET_INFO_CUDA_DEVICE", "uuid"),
    ):
        if table in have and column in columns(file, table):
            file.execute(f"UPDATE {table} SET {column} = NULL")
    if "TARGET_INFO_SYSTEM_ENV" in have:
        file.execute(f"DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE nameEnum NOT IN {SYSTEM_FACTS}")
    if "PYREC_META" in have:
        file.execute("DELETE FROM PYREC_META WHERE value LIKE '/%'")  # where libraries were found
    if "META_DATA_EXPORT" in have:
        file.execute(
            "DELETE FROM META_DATA_EXPORT WHERE name NOT LIKE 'EXPORT_SCHEMA_%'"
            " AND name NOT LIKE 'EXPORT_PRODUCT_%' AND name != 'EXPORT_PARAM_EXPORT_TYPE'"
        )
    processes = " UNION ".join(
        f"SELECT globalTid >> 24 FROM {table}"
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
        if table in have
    )
    for table, number in (("PROCESSES", "globalPid"), ("ThreadNames", "globalTid")):
        if table in have and processes:  # nsys lists every process and thread of the machine
            file.execute(f"DELETE FROM {table} WHERE {number} >> 24 NOT IN ({processes})")
    if "PROCESSES" in have:
        file.execute("UPDATE PROCESSES SET name = 'python'")


def columns(file: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in file.execute(f"PRAGMA table_info({table})")]


def intern_stacks(file: sqlite3.Connection, have: list[str]) -> None:
    """Equal stacks are stored once, through jsonTextId: inline they are most of the file."""
    if "NVTX_EVENTS" not in have:
        return
    last = file.execute("SELECT ifnull(max(id), 0) FROM StringIds").fetchone()[0]
    texts = file.execute("SELECT DISTINCT jsonText FROM NVTX_EVENTS WHERE jsonText IS NOT NULL").fetchall()
    for number, (text,) in enumerate(texts, last + 1):
        file.execute("INSERT INTO StringIds VALUES (?, ?)", (number, text))
        file.execute(
            "UPDATE NVTX_EVENTS SET jsonTextId = ?, jsonText = NULL WHERE jsonText = ?", (number, text)
        )


def shorten_samples(file: sqlite3.Connection, have: list[str]) -> None:
    """Samples keep their outermost frames, which have the program's lines: a start-up imports more than a
    hundred frames deep, and these stacks would be most of the file.
    """
    if "NVTX_EVENTS" not in have:
        return
    kept: dict[str, int] = {}
    where = "value LIKE ? AND id IN (SELECT jsonTextId FROM NVTX_EVENTS)"
    texts = file.execute(f"SELECT id, value FROM StringIds WHERE {where}", [f'{{"{SAMPLE_KEY}%'])
    for number, text in texts.fetchall():
        payload = json.loads(text)
        stack = payload[SAMPLE_KEY]
        stack["Frames"] = stack.get("Frames", [])[-SAMPLE_FRAMES:]
        stack["Frames count"] = len(stack["Frames"])
        short = json.dumps(payload, separators=(",", ":"))
        file.execute("UPDATE StringIds SET value = ? WHERE id = ?", (short, number))
        first = kept.setdefault(short, number)
        if first != number:
            file.execute("UPDATE NVTX_EVENTS SET jsonTextId = ? WHERE jsonTextId = ?", (first, number))
            file.execute("DELETE FROM StringIds WHERE id = ?", (number,))


def drop_stacks(file: sqlite3.Connection, have: list[str]) -> None:
    """Stacks of calls that were dropped, and their frames: most of those of a short program are imports."""
    if "PYREC_STACK" not in have:
        return
    if {"PYREC_LAUNCH", "CUPTI_ACTIVITY_KIND_RUNTIME"} <= set(have):
        file.execute(
            "DELETE FROM PYREC_LAUNCH WHERE (globalTid, correlationId) NOT IN"
            " (SELECT globalTid, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
            " WHERE correlationId IS NOT NULL)"
        )
    used = " UNION ".join(
        f"SELECT stackId FROM {table} WHERE stackId IS NOT NULL"
        for table in ("PYREC_LAUNCH", "PYREC_HOST_EVENT")
        if table in have
    )
    if not used:
        return
    file.execute(
        f"CREATE TEMP TABLE used_stacks AS WITH RECURSIVE up (id) AS ({used} UNION"
        " SELECT s.parentId FROM PYREC_STACK s JOIN up ON s.id = up.id WHERE s.parentId IS NOT NULL)"
        " SELECT id FROM up"
    )
    file.execute("DELETE FROM PYREC_STACK WHERE id NOT IN (SELECT id FROM temp.used_stacks)")
    file.execute("DELETE FROM PYREC_FRAME WHERE id NOT IN (SELECT frameId FROM PYREC_STACK)")


def drop_sources(file: sqlite3.Connection, have: list[str], strip: tuple[str, ...]) -> None:
    """The text of lines is kept for the stripped program: that of libraries is known."""
    if "PYREC_SOURCE" in have:
        own = " OR ".join("value LIKE ?" for _ in strip) or "0"
        file.execute(
            f"DELETE FROM PYREC_SOURCE WHERE fileId NOT IN (SELECT id FROM StringIds WHERE {own})",
            [folder.rstrip("/") + "/%" for folder in strip],
        )


def drop_strings(file: sqlite3.Connection, have: list[str]) -> None:
    """Strings that no kept row names any more: of foreign processes, native symbols, libraries."""
    used: set[int] = set()
    for table, names in STRING_COLUMNS.items():
        for column in [name for name in names if table in have and name in columns(file, table)]:
            used |= {
                row[0]
                for row in file.execute(f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL")
            }
    if "NVTX_EVENTS" in have:
        rows = file.execute(
            "SELECT s.value FROM StringIds s WHERE s.id IN (SELECT jsonTextId FROM NVTX_EVENTS)"
        )
        for (text,) in rows:
            for key in (PYTHON_STACK_KEY, SAMPLE_KEY):
                for frame in json.loads(text).get(key, {}).get("Frames", ()):
                    used |= {frame["Function"], frame["File"]}
    unused = {row[0] for row in file.execute("SELECT id FROM StringIds")} - used
    file.executemany("DELETE FROM StringIds WHERE id = ?", [(number,) for number in unused])


def shorten_paths(file: sqlite3.Connection, strip: tuple[str, ...], called: str = "") -> None:
    """Cut off the folders that identify a machine; what says whose code it is stays."""

    def shortened(text: str) -> str:
        for folder in strip:
            if text.startswith(folder.rstrip("/") + "/"):
                return called or text[len(folder.rstrip("/")) + 1 :]
        if EXERCISE_COPY.match(text):
            return EXERCISE_COPY.sub("", text)
        text = OUR_PACKAGE.sub("/site-packages/", text) if "-packages/" not in text else text
        return STANDARD_LIBRARY.sub("", HOME.sub("", text))

    changed = [
        (shortened(text), number)
        for number, text in file.execute("SELECT id, value FROM StringIds WHERE value LIKE '/%.py'")
        if shortened(text) != text
    ]
    file.executemany("UPDATE StringIds SET value = ? WHERE id = ?", changed)
    if called and file.execute("SELECT 1 FROM sqlite_master WHERE name = 'PYREC_META'").fetchone():
        file.execute("UPDATE PYREC_META SET value = ? WHERE name = 'script'", (called,))


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a small, shareable copy of a recording.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument(
        "--strip", action="append", default=[], help="folder to cut off from the program's own files"
    )
    parser.add_argument("--called", default="", help="the new name of the stripped program's file")
    parser.add_argument("--samples", action="store_true", help="keep the samples of Python stacks")
    parser.add_argument("--no-source", action="store_true", help="drop the text of the program's lines")
    args = parser.parse_args()
    strip, text = tuple(args.strip), not args.no_source
    size = reduce(args.source, args.target, strip, args.called, args.samples, text)
    print(f"{args.target}: {size} bytes, from {args.source.stat().st_size}", file=sys.stderr)
    return 0 if size < SIZE_LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
