# SPDX-License-Identifier: Apache-2.0
"""Samples of host threads: the CPU and Python samples of nsys, and those of our recorder.

A thread that computes makes no calls, so only samples show what it did while the GPU was idle.
"""

from __future__ import annotations

import re
from pathlib import PurePath

import numpy as np

from profiling_lab.trace.columns import I32, I64, full
from profiling_lab.trace.extras import HostSamples
from profiling_lab.trace.nsys.nsys_stacks import SAMPLING_SCHEMA, payload_frames, payload_sql
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.nsys.strings import Strings
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.process_ids import Registry, process_part
from profiling_lab.trace.stacks import Frame

_MARK = 34  # an NVTX event type
_Rows = tuple[I64, I64, I32, I32]
"""time, thread id of the file, place, stack"""


def read_samples(
    file: SqliteFile,
    strings: Strings,
    processes: Registry,
    threads: Registry,
    ownership: Ownership,
    with_python: bool,
) -> HostSamples:
    """All samples. with_python: also periodic Python stacks, which requires a search in all NVTX marks."""
    places: dict[str, int] = {}
    parts = [_native(file, strings, places)]
    stacks: tuple[tuple[Frame, ...], ...] = ()
    if with_python:
        found, stacks = _python(file, strings, ownership, places)
        parts.insert(0, found)
    time_ns, tid, place, stack = (np.concatenate(column) for column in zip(*parts, strict=True))
    process = processes.number(process_part(tid))
    return HostSamples(time_ns, process, threads.number(tid), place, tuple(places), stack, stacks)


def _python(
    file: SqliteFile, strings: Strings, ownership: Ownership, places: dict[str, int]
) -> tuple[_Rows, tuple[tuple[Frame, ...], ...]]:
    """Periodic stacks (--python-sampling=true)."""
    table = file.newest("NVTX_EVENTS")
    if table is None or "globalTid" not in file.columns(table):
        return _nothing(), ()
    payload, join = payload_sql(file, table)
    columns, texts = file.coded_texts(
        f"SELECT CAST(n.start AS INTEGER), IFNULL(n.globalTid, 0), CAST({payload} AS BLOB)"
        f' FROM "{table}" n {join} WHERE n.eventType = {_MARK} AND {payload} LIKE \'{{"{SAMPLING_SCHEMA}%\'',
        2,
    )
    stacks = [payload_frames(text, strings, SAMPLING_SCHEMA) for text in texts]
    number = [_place(places, _frame_text(stack, ownership)) if stack else -1 for stack in stacks]
    start_ns, tid, text = columns
    place = np.array([*number, -1], dtype=np.int32)[text]
    known = place >= 0
    return (start_ns[known], tid[known], place[known], text[known].astype(np.int32)), tuple(stacks)


def _frame_text(stack: tuple[Frame, ...], ownership: Ownership) -> str:
    frame = next((frame for frame in stack if ownership.is_own(frame.file)), stack[0])
    return f"{PurePath(frame.file).name}:{frame.line} {frame.function}"


def _native(file: SqliteFile, strings: Strings, places: dict[str, int]) -> _Rows:
    """The innermost frame of native stacks (--sample=process-tree)."""
    needed = {"COMPOSITE_EVENTS": {"id", "start", "globalTid"}}
    needed["SAMPLING_CALLCHAINS"] = {"id", "symbol", "module", "stackDepth"}
    if any(not columns <= set(file.columns(table)) for table, columns in needed.items()):
        return _nothing()
    unresolved = "IFNULL(c.unresolved, 0)" if "unresolved" in file.columns("SAMPLING_CALLCHAINS") else "0"
    start_ns, tid, symbol, module, hidden = file.integers(
        "SELECT CAST(e.start AS INTEGER), IFNULL(e.globalTid, 0), IFNULL(c.symbol, 0), IFNULL(c.module, 0),"
        f" {unresolved} FROM COMPOSITE_EVENTS e JOIN SAMPLING_CALLCHAINS c"
        " ON c.id = e.id AND c.stackDepth = 0 WHERE e.start IS NOT NULL",
        5,
    )
    known: dict[tuple[int, int, int], int] = {}
    rows = []
    for key in zip(symbol.tolist(), module.tolist(), hidden.tolist(), strict=True):
        if key not in known:
            library = PurePath(strings[key[1]]).name or "unknown library"
            text = library if key[2] else f"{_plain(strings[key[0]])} ({library})"
            known[key] = _place(places, text)
        rows.append(known[key])
    return start_ns, tid, np.array(rows, dtype=np.int32), full(len(rows), -1, np.int32)


def _plain(symbol: str) -> str:
    """A function of C++ without its template arguments, parameters and return type."""
    name = re.split(r"[<(]", symbol.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return name.split(" ")[-1] or symbol


def _place(places: dict[str, int], text: str) -> int:
    return places.setdefault(text, len(places))


def _nothing() -> _Rows:
    times, numbers = np.empty(0, np.int64), np.empty(0, np.int32)
    return times, times, numbers, numbers
