# SPDX-License-Identifier: Apache-2.0
"""API calls from the nsys schema, each with its Python stack and autograd data."""

from __future__ import annotations

import re

import numpy as np

from profiling_lab.trace.call_stacks import CallFacts, CallRows, CallTable
from profiling_lab.trace.columns import I32, NO_SEQUENCE, U8, Calls, Trait, dense
from profiling_lab.trace.nsys.nsys_stacks import from_nsys
from profiling_lab.trace.nsys.nvtx import NvtxRows
from profiling_lab.trace.nsys.recorder_stacks import from_recorder, has_recorder_stacks
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.nsys.strings import Strings
from profiling_lab.trace.process_ids import Registry, process_part
from profiling_lab.trace.stacks import Stacks

CALL_TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"
BACKTRACE_CLASS = 67  # an extra row per call with the native call chain; not a call itself
_VERSION = re.compile(r"(_ptsz|_ptds)?(_v\d+)?(_ptsz|_ptds)?$")
_LATE_NODES = ("CopySlices",)


def read_calls(
    file: SqliteFile,
    strings: Strings,
    processes: Registry,
    threads: Registry,
    thread_names: dict[int, str],
    nvtx: NvtxRows,
) -> CallTable:
    table = file.newest(CALL_TABLE)
    wanted: dict[str, int | str] = {
        "start": 0,
        "end": 0,
        "eventClass": 0,
        "globalTid": 0,
        "correlationId": -1,
        "nameId": 0,
    }
    ours = has_recorder_stacks(file)
    if not ours:
        wanted["callchainId"] = -1
    if table:
        file.require(table, "start", "end")
    rows = file.select(table, wanted) if table else {name: np.empty(0, dtype=np.int64) for name in wanted}
    process = processes.number(process_part(rows["globalTid"]))
    thread = threads.number(rows["globalTid"])
    is_call = rows["eventClass"] != BACKTRACE_CLASS
    every = CallRows(
        rows["start"],
        rows["end"],
        process,
        thread,
        rows["correlationId"],
        is_call,
        rows.get("callchainId", np.empty(0, dtype=np.int64)),
    )
    if ours:
        stacks, facts, found = from_recorder(file, strings, every, processes)
    else:
        stacks, facts, found = from_nsys(file, strings, every, threads, nvtx)

    kept = np.flatnonzero(is_call)
    names, name_ids = dense(rows["nameId"][kept])
    calls = Calls(
        start_ns=rows["start"][kept],
        end_ns=np.maximum(rows["start"], rows["end"])[kept],
        process=process[kept],
        thread=thread[kept],
        correlation=rows["correlationId"][kept],
        name=names,
        names=tuple(_VERSION.sub("", strings[i]) for i in name_ids.tolist()),
        stack=facts.stack,
        next_sequence=facts.next_sequence,
        node_sequence=facts.node_sequence,
        counter=facts.counter,
        node_counter=facts.node_counter,
        node_name=facts.node_name,
        node_names=facts.node_names,
        traits=_traits(stacks, facts, thread[kept], threads, thread_names),
        own_ns=facts.own_ns,
    )
    return CallTable(calls, stacks, found)


def _traits(
    stacks: Stacks, facts: CallFacts, thread: I32, threads: Registry, thread_names: dict[int, str]
) -> U8:
    """The traits of each call, from its numbers, stack and thread."""
    leaf_is_engine = stacks.called_by_engine()
    on_engine_thread = np.array(
        [thread_names.get(i, "").startswith("pt_autograd") for i in threads.ids] or [False], dtype=bool
    )[thread]
    in_node = facts.node_sequence != NO_SEQUENCE
    has_stack = facts.stack > 0
    engine_leaf = has_stack & leaf_is_engine[facts.stack]
    in_backward = in_node | facts.in_engine | on_engine_thread
    late = np.isin(
        facts.node_name, [i for i, name in enumerate(facts.node_names) if name.split("::")[-1] in _LATE_NODES]
    )

    bits = np.zeros(len(thread), dtype=np.uint8)
    bits[in_backward] |= np.uint8(Trait.IS_BACKWARD)
    bits[engine_leaf & ~in_node] |= np.uint8(Trait.STARTS_BACKWARD)
    bits[late] |= np.uint8(Trait.NODE_MADE_LATE)
    bits[in_backward & has_stack & ~engine_leaf] |= np.uint8(Trait.FRAMES_INSIDE_NODE)
    return bits
