# SPDX-License-Identifier: Apache-2.0
"""The tables of a trace as Parquet files, with names, lines and phases instead of numbers.

A row number in one file (`call`, `stack`, `range`) is the column `id` of the file of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from profiling_lab import _analysis
from profiling_lab.analysis.coverage import reason_text, why_no_line
from profiling_lab.export.output import Progress, Written, no_progress
from profiling_lab.trace import Trace
from profiling_lab.trace.attribution import Match
from profiling_lab.trace.columns import (
    NO_SEQUENCE,
    OPEN_END,
    MemoryKind,
    OperationKind,
    OverheadKind,
    SyncKind,
    unique,
)
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import LINE_PHASES

_ROWS = 1 << 20
"""rows per row group, which a reader has in memory at the same time"""


def write_parquet(
    trace: Trace, folder: Path, own: tuple[str, ...] = (), *, progress: Progress = no_progress
) -> tuple[Written, ...]:
    """Write all tables into an existing folder. `own`: the user's own code, see Ownership.

    Raises NotEnoughDataError for a trace without GPU operations.
    """
    tables = {
        "operations": _operations,
        "calls": _calls,
        "ranges": _ranges,
        "syncs": _syncs,
        "overheads": _overheads,
        "stacks": _stacks,
    }
    facts = {"exporter": "profiling-lab", "trace": trace.path.name, "times": "nanoseconds"}
    own_row = trace.stacks.own_rows(Ownership(own))
    written = []
    for name, columns_of in tables.items():
        columns = columns_of(trace, own_row)
        table = pa.table(columns)
        schema = _as_texts(table.schema).with_metadata(facts)
        with pq.ParquetWriter(folder / f"{name}.parquet", schema, compression="zstd") as writer:
            for first in range(0, max(len(table), 1), _ROWS):
                writer.write_table(table.slice(first, _ROWS).cast(schema))
                progress(name, min(first + _ROWS, len(table)), len(table))
        written.append(Written(name, len(table)))
    return tuple(written)


def _operations(trace: Trace, own_row: npt.NDArray[Any]) -> dict[str, pa.Array]:
    operations, found, stacks = trace.operations, trace.attribution, trace.stacks
    line = own_row[found.stack]
    why = why_no_line(trace, own_row)
    line = np.where(why == 0, line, 0)
    frame = stacks.frame[line]
    is_copy, is_kernel = operations.kind == OperationKind.COPY, operations.kind == OperationKind.KERNEL
    memory = tuple(kind.name.lower() for kind in MemoryKind)
    reasons = ["", *(reason_text(trace, number) for number in range(1, int(why.max(initial=0)) + 1))]
    return {
        "id": pa.array(np.arange(len(operations))),
        "kind": _named(operations.kind, [kind.name.lower() for kind in OperationKind]),
        "name": _named(operations.name, operations.names),
        "short_name": _named(operations.name, operations.short_names),
        "start_ns": pa.array(operations.start_ns),
        "end_ns": pa.array(operations.end_ns),
        "duration_ns": pa.array(operations.duration_ns),
        "pid": pa.array(np.asarray(trace.pids, dtype=np.int64)[operations.process]),
        "device": pa.array(operations.device),
        "stream": pa.array(operations.stream),
        "correlation": _or_null(operations.correlation, operations.correlation < 0),
        "size_bytes": _or_null(operations.size_bytes, is_kernel),
        "source_memory": _named(operations.source_memory, memory, ~is_copy),
        "target_memory": _named(operations.target_memory, memory, is_kernel),
        "call": _or_null(found.call, found.call < 0),
        "range": _or_null(found.range, found.range < 0),
        "stack": _or_null(found.stack, found.stack == 0),
        "phase": _named(found.line_phase, LINE_PHASES),
        "match": _named(found.match, [match.name.lower() for match in Match]),
        "file": _named(frame, [f.file for f in stacks.frames], line == 0),
        "line": _or_null(np.array([f.line for f in stacks.frames], dtype=np.int64)[frame], line == 0),
        "function": _named(frame, [f.function for f in stacks.frames], line == 0),
        "no_line_because": _named(why, reasons, why == 0),
    }


def _calls(trace: Trace, own_row: npt.NDArray[Any]) -> dict[str, pa.Array]:
    calls = trace.calls
    return {
        "id": pa.array(np.arange(len(calls))),
        "name": _named(calls.name, calls.names),
        "start_ns": pa.array(calls.start_ns),
        "end_ns": pa.array(calls.end_ns),
        **_thread(trace, calls),
        "correlation": _or_null(calls.correlation, calls.correlation < 0),
        "stack": _or_null(calls.stack, calls.stack == 0),
        "autograd_counter": _or_null(calls.next_sequence, calls.next_sequence == NO_SEQUENCE),
        "autograd_node": _or_null(calls.node_sequence, calls.node_sequence == NO_SEQUENCE),
        "autograd_node_name": _named(calls.node_name, calls.node_names, calls.node_name < 0),
        "in_window": pa.array(trace.calls_inside),
    }


def _ranges(trace: Trace, own_row: npt.NDArray[Any]) -> dict[str, pa.Array]:
    ranges = trace.ranges
    domains = unique(ranges.domain)
    domain_names = [ranges.domains.get(number, "") for number in domains.tolist()]
    return {
        "id": pa.array(np.arange(len(ranges))),
        "name": _named(ranges.name, ranges.names),
        "start_ns": pa.array(ranges.start_ns),
        "end_ns": _or_null(ranges.end_ns, ranges.end_ns == OPEN_END),
        **_thread(trace, ranges),
        "sequence": _or_null(ranges.sequence, ranges.sequence == NO_SEQUENCE),
        "domain": _named(np.searchsorted(domains, ranges.domain), domain_names),
        "stack": _or_null(ranges.stack, ranges.stack == 0),
        "in_window": pa.array(trace.ranges_inside),
    }


def _syncs(trace: Trace, own_row: npt.NDArray[Any]) -> dict[str, pa.Array]:
    syncs, calls = trace.syncs, trace.calls
    call = _analysis.call_of(
        syncs.process, syncs.correlation, calls.process, calls.correlation, calls.start_ns
    )
    return {
        "id": pa.array(np.arange(len(syncs))),
        "kind": _named(syncs.kind, [kind.name.lower() for kind in SyncKind]),
        "start_ns": pa.array(syncs.start_ns),
        "end_ns": pa.array(syncs.end_ns),
        "pid": pa.array(np.asarray(trace.pids, dtype=np.int64)[syncs.process]),
        "correlation": _or_null(syncs.correlation, syncs.correlation < 0),
        "call": _or_null(call, call < 0),
    }


def _overheads(trace: Trace, own_row: npt.NDArray[Any]) -> dict[str, pa.Array]:
    overheads = trace.overheads
    return {
        "id": pa.array(np.arange(len(overheads))),
        "kind": _named(overheads.kind, [kind.name.lower() for kind in OverheadKind]),
        "start_ns": pa.array(overheads.start_ns),
        "end_ns": pa.array(overheads.end_ns),
        **_thread(trace, overheads),
    }


def _stacks(trace: Trace, own_row: npt.NDArray[Any]) -> dict[str, pa.Array]:
    """A tree: the frames of a stack are those of its row, its parent, and so on."""
    stacks = trace.stacks
    frame = stacks.frame[1:]
    return {
        "id": pa.array(np.arange(1, len(stacks))),
        "parent": _or_null(stacks.parent[1:], stacks.parent[1:] == 0),
        "file": _named(frame, [f.file for f in stacks.frames]),
        "line": pa.array(np.array([f.line for f in stacks.frames], dtype=np.int64)[frame]),
        "function": _named(frame, [f.function for f in stacks.frames]),
        "is_own": pa.array(own_row[1:] == np.arange(1, len(stacks))),
    }


def _thread(trace: Trace, table: Any) -> dict[str, pa.Array]:
    pids, tids = (np.asarray(ids, dtype=np.int64) for ids in (trace.pids, trace.tids))
    return {"pid": pa.array(pids[table.process]), "tid": pa.array(tids[table.thread])}


def _or_null(values: npt.NDArray[Any], unknown: npt.NDArray[Any]) -> pa.Array:
    return pa.array(values, mask=np.asarray(unknown, dtype=bool))


def _as_texts(schema: pa.Schema) -> pa.Schema:
    """Dictionary columns as plain texts. Parquet has its own dictionaries, and readers need not merge
    them.
    """
    return pa.schema([pa.field(f.name, pa.string()) if pa.types.is_dictionary(f.type) else f for f in schema])


def _named(
    number: npt.NDArray[Any], names: Sequence[str], unknown: npt.NDArray[Any] | None = None
) -> pa.Array:
    """A column with few distinct texts: each is stored once, and read as text."""
    mask = None if unknown is None else np.asarray(unknown, dtype=bool)
    indices = pa.array(number.astype(np.int32), mask=mask)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(names), pa.string()))
