# SPDX-License-Identifier: Apache-2.0
"""The events of a torch.profiler file (Chrome trace JSON) as tables, one per kind.

The text is parsed in C++ while it is read (csrc/trace/chrome_reader.h), and only the columns are kept.
msgspec, the fastest library, would need the whole valid text in memory and create a Python object for each
of millions of events. It only reads the metadata.
"""

from __future__ import annotations

import re
from dataclasses import field
from pathlib import Path
from typing import Any

import msgspec
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.errors import UnreadableInputError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64
from profiling_lab.trace.facts import whole_number
from profiling_lab.trace.kineto.pieces import Pieces

Table = dict[str, npt.NDArray[Any]]

KINDS = ("operations", "calls", "operators", "python", "syncs", "overheads")
_BARE_NAN = re.compile(r"(?:^|(?<=[:\[,]))\s*-?(?:N/A|NaN|nan|Infinity|inf)\s*(?=[,\]}]|$)")
_FARTHEST_NS = 1 << 61
_EPOCH_NS = 10**18  # September 2001

_REPAIRS = {
    "not_json": "values and texts in events that are not JSON (read as null and with blanks)",
    "wild_times": "events without a sensible time (skipped)",
    "without_phase": "events without a phase (skipped)",
    "times_as_text": "events with times written as text (read as numbers)",
    "huge_integers": "integers over 64 bits (read as missing)",
    "broken_events": "places where the events are not JSON (these events are skipped)",
    "lost_bytes": "bytes of events that are not JSON (skipped)",
    "broken_root": "metadata that is not JSON (skipped)",
    "cut": "break: the file ends before its JSON does, later events are lost",
    "more_documents": "break: another trace follows in the same file (skipped: it would count twice)",
}
_CUT_GZIP = "break: the gzip data is incomplete, later events are lost"
_NO_UTF8 = "names that are not UTF-8 (shown with replacement characters)"


@dataclass(frozen=True, slots=True)
class ChromeEvents:
    """Complete events (`ph` X) by kind, in the order of the file.

    `start_ns` and `end_ns` are absolute, `thread` is a row of `pids` and `tids`, `name` a row of `texts`; a
    missing number is int64's minimum, a missing text -1. csrc/trace/chrome_tables.h lists all columns.
    """

    tables: dict[str, Table]
    flows: Table
    memory: Table
    texts: tuple[str, ...]
    pids: I64
    tids: I64
    facts: dict[str, Any]
    """members of the root object besides the events: deviceProperties, distributedInfo, ..."""
    repairs: dict[str, int] = field(default_factory=dict)
    cut: str = ""
    """where the file was truncated; '' if it is complete"""
    others: dict[str, int] = field(default_factory=dict)
    """the number of events per category without a table"""

    def __getitem__(self, kind: str) -> Table:
        return self.tables[kind]

    @property
    def devices(self) -> tuple[dict[str, Any], ...]:
        """The GPU properties in the file."""
        listed = self.facts.get("deviceProperties")
        return tuple(d for d in listed if isinstance(d, dict)) if isinstance(listed, list) else ()


def read_events(path: Path) -> ChromeEvents:
    """Read the file, also if it is truncated. Raises UnreadableInputError without events of
    torch.profiler.
    """
    reader = _analysis.ChromeReader()
    pieces = Pieces(path)
    size_bytes = 0
    for piece in pieces:
        size_bytes += len(piece)
        reader.feed(piece)
    reader.finish()

    tables = {kind: reader.take_table(kind) for kind in KINDS}
    texts, no_utf8 = reader.texts()
    facts, broken_facts = _facts(reader.root())
    damage = reader.damage()
    damage["broken_root"] += broken_facts
    repairs = {_REPAIRS[what]: count for what, count in damage.items() if count}
    if no_utf8:
        repairs[_NO_UTF8] = no_utf8
    if pieces.breaks_off:
        repairs.pop(_REPAIRS["cut"], None)
        repairs[_CUT_GZIP] = 1
    if not any(len(table["thread"]) for table in tables.values()):
        raise UnreadableInputError(f"{path} {_why_nothing(reader.found_events, damage, pieces)}")

    moments = flows, memory = reader.take_table("flows"), reader.take_table("memory")
    base_ns = _base_ns(facts, tables)
    for column in ("start_ns", "end_ns"):
        for table in tables.values():
            table[column] += base_ns
    for table in moments:
        table["time_ns"] += base_ns
    cut = ""
    if damage["cut"] or pieces.breaks_off:
        events = sum(len(table["thread"]) for table in tables.values())
        unpacked = " (unpacked)" if path.stat().st_size != size_bytes else ""
        cut = f"the file is truncated after {size_bytes:,} bytes{unpacked} and {events:,} events"
    others = reader.others()
    return ChromeEvents(tables, flows, memory, texts, *reader.threads(), facts, repairs, cut, others)


def _why_nothing(found_events: bool, damage: dict[str, int], pieces: Pieces) -> str:
    if pieces.breaks_off:
        return "is truncated: its gzip data is incomplete, and it has no complete event of torch.profiler"
    if damage["wild_times"] or damage["without_phase"]:
        return "is not a trace of torch.profiler: no event in it has a valid time"
    if damage["cut"] or damage["broken_events"] or damage["broken_root"]:
        return "is not a trace of torch.profiler: it is not valid JSON, and has no complete event"
    where = "its list of events has none of torch.profiler's" if found_events else "it has no events of it"
    return f"is JSON but not a trace of torch.profiler: {where}"


def _facts(root: dict[str, bytes]) -> tuple[dict[str, Any], int]:
    facts, broken = {}, 0
    for name, json in root.items():
        try:
            facts[name] = msgspec.json.decode(_BARE_NAN.sub("null", json.decode(errors="replace")))
        except (msgspec.MsgspecError, RecursionError):
            broken += 1
    return facts, broken


def _base_ns(facts: dict[str, Any], tables: dict[str, Table]) -> int:
    """The base of all times. Some files have a base although their times already count from 1970."""
    base_ns = whole_number(facts.get("baseTimeNanoseconds"), 0)
    first_ns = min(int(table["start_ns"].min()) for table in tables.values() if len(table["start_ns"]))
    counts_already = base_ns > _EPOCH_NS and first_ns > _EPOCH_NS
    return 0 if counts_already or not 0 <= base_ns < _FARTHEST_NS else base_ns
