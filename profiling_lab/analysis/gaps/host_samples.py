# SPDX-License-Identifier: Apache-2.0
"""Where the threads of the host were from time to time: samples that nsys takes of the CPU and of Python.

A thread that computes makes no call, so nothing but a sample tells what it did in a pause of the GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from profiling_lab.trace.columns import I32, I64
from profiling_lab.trace.nsys.nsys_stacks import SAMPLING_SCHEMA, payload_frames, payload_sql
from profiling_lab.trace.nsys.source import SqliteSource
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.trace import Trace

_MARK = 34  # an NVTX event type


@dataclass(frozen=True, slots=True)
class HostSamples:
    """Samples in no order."""

    time_ns: I64
    thread: I32
    place: I32
    """row of `places`"""
    places: tuple[str, ...]
    """`train.py:44 load`, or of native code `poll (libc.so.6)`, the library alone where it has no symbols"""

    def __len__(self) -> int:
        return len(self.time_ns)


def host_samples(trace: Trace, ownership: Ownership) -> HostSamples:
    """All samples of a file of nsys; none of any other. Of a Python stack counts the innermost frame that is
    the user's own, else the innermost.
    """
    source = trace.source
    places: dict[str, int] = {}
    parts = [_nothing()]
    if isinstance(source, SqliteSource):
        parts = [_python(source, ownership, places), _native(source, places)]
    time_ns, tid, place = (np.concatenate(column) for column in zip(*parts, strict=True))
    return HostSamples(time_ns, source.threads.number(tid), place, tuple(places))


def _python(source: SqliteSource, ownership: Ownership, places: dict[str, int]) -> tuple[I64, I64, I32]:
    """Periodic stacks (--python-sampling=true)."""
    file = source.file
    table = file.newest("NVTX_EVENTS")
    if table is None or not _may_have_samples(source):
        return _nothing()
    payload, join = payload_sql(file, table)
    columns, texts = file.coded_texts(
        f"SELECT CAST(n.start AS INTEGER), IFNULL(n.globalTid, 0), CAST({payload} AS BLOB)"
        f' FROM "{table}" n {join} WHERE n.eventType = {_MARK} AND {payload} LIKE \'{{"{SAMPLING_SCHEMA}%\'',
        2,
    )
    stacks = [payload_frames(text, source.strings, SAMPLING_SCHEMA) for text in texts]
    number = [_place(places, _frame_text(stack, ownership)) if stack else -1 for stack in stacks]
    start_ns, tid, text = columns
    place = np.array([*number, -1], dtype=np.int32)[text]
    return start_ns[place >= 0], tid[place >= 0], place[place >= 0]


def _may_have_samples(source: SqliteSource) -> bool:
    """Our recorder has a mark for every call: they are not all looked at in vain."""
    asked = (
        source.recorder_facts().get("samples_per_second", "") if source.recorder == "profiling_lab" else ""
    )
    return asked != "0"


def _frame_text(stack: tuple[Frame, ...], ownership: Ownership) -> str:
    frame = next((frame for frame in stack if ownership.is_own(frame.file)), stack[0])
    return f"{PurePath(frame.file).name}:{frame.line} {frame.function}"


def _native(source: SqliteSource, places: dict[str, int]) -> tuple[I64, I64, I32]:
    """The innermost frame of native stacks (--sample=process-tree)."""
    file = source.file
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
            library = PurePath(source.strings[key[1]]).name or "unknown library"
            text = library if key[2] else f"{_plain(source.strings[key[0]])} ({library})"
            known[key] = _place(places, text)
        rows.append(known[key])
    return start_ns, tid, np.array(rows, dtype=np.int32)


def _plain(symbol: str) -> str:
    """A function of C++ without its template arguments, parameters and return type."""
    name = re.split(r"[<(]", symbol.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return name.split(" ")[-1] or symbol


def _place(places: dict[str, int], text: str) -> int:
    return places.setdefault(text, len(places))


def _nothing() -> tuple[I64, I64, I32]:
    return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32)
