# SPDX-License-Identifier: Apache-2.0
"""Stacks and autograd data from the tables that our recorder adds to the nsys schema."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from profiling_lab import _analysis
from profiling_lab.records import replace
from profiling_lab.trace.call_stacks import CallFacts, CallRows, StacksFound, rows_by_id, unknown_facts
from profiling_lab.trace.columns import I32, NO_SEQUENCE, dense
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.nsys.strings import Strings
from profiling_lab.trace.process_ids import Registry, process_part
from profiling_lab.trace.stacks import Frame, Stacks


def has_recorder_stacks(file: SqliteFile) -> bool:
    return bool(file.columns("PYREC_STACK") and file.columns("PYREC_LAUNCH"))


def from_recorder(
    file: SqliteFile, strings: Strings, rows: CallRows, processes: Registry
) -> tuple[Stacks, CallFacts, StacksFound]:
    stacks, row_of_id = _recorder_stacks(file, strings)
    launches = file.select(
        "PYREC_LAUNCH",
        {
            "globalTid": 0,
            "correlationId": -1,
            "stackId": 0,
            "peekSeq": NO_SEQUENCE,
            "nodeSeq": NO_SEQUENCE,
            "nodeFwdThread": -1,
            "selfThread": -1,
            "nodeNameId": -1,
            "ownNs": -1,
        },
    )
    process = processes.number(process_part(launches["globalTid"]))
    calls = np.flatnonzero(rows.is_call)
    call = _analysis.call_of(
        process,
        launches["correlationId"],
        rows.process[calls],
        rows.correlation[calls],
        rows.start_ns[calls],
    )
    known = np.flatnonzero(call >= 0)
    at = call[known]
    facts = unknown_facts(len(calls))
    facts.stack[at] = row_of_id(launches["stackId"][known])
    facts.next_sequence[at] = launches["peekSeq"][known]
    facts.node_sequence[at] = launches["nodeSeq"][known]
    facts.own_ns[at] = launches["ownNs"][known]
    # A counter belongs to a thread of one process; the recorder numbers threads per process.
    counters = Registry()
    for column, name in ((facts.counter, "selfThread"), (facts.node_counter, "nodeFwdThread")):
        thread = launches[name][known]
        number = counters.number((process[known].astype(np.int64) << 40) | (thread & 0xFFFFFFFF))
        column[at] = np.where(thread < 0, -1, number)
    number, name_ids = dense(launches["nodeNameId"][known])
    names = tuple(strings[i] for i in name_ids.tolist())
    unnamed = np.array([not name for name in names] or [True], dtype=bool)
    facts.node_name[at] = np.where(unnamed[number], -1, number)
    found = StacksFound("recorder", int((launches["stackId"] > 0).sum()), 0, len(call) - len(known))
    return stacks, replace(facts, node_names=names), found


def _recorder_stacks(file: SqliteFile, strings: Strings) -> tuple[Stacks, Callable[..., I32]]:
    """The stack tree, and a function from stack ids of the file to its rows."""
    frame_rows = file.select("PYREC_FRAME", {"id": 0, "functionId": 0, "fileId": 0, "line": 0})
    frames = [
        Frame(strings[function], strings[path], line)
        for function, path, line in zip(
            frame_rows["functionId"].tolist(),
            frame_rows["fileId"].tolist(),
            frame_rows["line"].tolist(),
            strict=True,
        )
    ]
    frame_of_id = rows_by_id(frame_rows["id"])
    nodes = file.select("PYREC_STACK", {"id": 0, "parentId": 0, "frameId": 0})
    row_of_id = rows_by_id(nodes["id"], first=1)
    parent = _rooted(np.concatenate([[0], row_of_id(nodes["parentId"])]).astype(np.int32))
    # A frame that is missing in the file stays a frame without a name.
    frame = np.concatenate([[0], frame_of_id(nodes["frameId"], missing=len(frames))]).astype(np.int32)
    return Stacks(parent, frame, (*frames, Frame("", "", 0))), row_of_id


def stack_rows(file: SqliteFile) -> Callable[..., I32]:
    """A function from stack ids of the file to rows of the trace's stacks."""
    return rows_by_id(file.select("PYREC_STACK", {"id": 0})["id"], first=1)


def _rooted(parent: I32) -> I32:
    """The same tree without cycles, so that a damaged file cannot cause an endless loop."""
    upwards = np.where(parent == 0, -1, parent).astype(np.int32)
    reaches_root: I32 = _analysis.nearest_marked(upwards, (parent == 0).astype(np.uint8))
    return np.where(reaches_root < 0, 0, parent).astype(np.int32)
