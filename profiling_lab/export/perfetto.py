# SPDX-License-Identifier: Apache-2.0
"""Chrome trace JSON for ui.perfetto.dev: threads, GPU streams, and arrows from each launch to its operation.

Viewers use nanoseconds internally but read microseconds, and some truncate after the third digit instead of
rounding: a child may then end after its parent, and is dropped. So a time with a fraction has a fourth
digit, with which truncating and rounding give the same first three. Times count from `baseTimeNanoseconds`;
from the epoch they would not fit into the viewer's floating-point numbers.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import numpy as np

from profiling_lab.export.operation_args import OperationArgs
from profiling_lab.export.output import Progress, Written, no_progress
from profiling_lab.export.tracks import Slices, gpu_slices, host_slices
from profiling_lab.trace import Trace
from profiling_lab.trace.call_stacks import EXACT_LINES
from profiling_lab.trace.columns import I64, NO_SEQUENCE, OPEN_END, Calls, Evaluates, Operations, OverheadKind

_AROUND_NS = 24 * 3600 * 10**9
"""the largest distance of a host event from the GPU work"""
_CHUNK = 20_000
"""rows that are formatted at a time"""


def write_perfetto(
    trace: Trace,
    path: Path,
    own: tuple[str, ...] = (),
    *,
    packed: bool = False,
    progress: Progress = no_progress,
) -> tuple[Written, ...]:
    """Write the file; `packed`: with gzip. `own`: the user's own code, see Ownership.

    Raises NotEnoughDataError in a trace without GPU operations.
    """
    out = gzip.GzipFile(path, "wb", compresslevel=4, mtime=0) if packed else path.open("wb")
    with closing(out):
        return _Writer(trace, own, out, progress).write()


class _Writer:
    """One file being written."""

    def __init__(self, trace: Trace, own: tuple[str, ...], out: Any, progress: Progress) -> None:
        self.trace = trace
        self.out: IO[bytes] = out
        self.progress = progress
        self.own = own
        self.call_stacks: dict[int, str] = {}
        self.launched_by = trace.attribution.call
        self.host = self._host()
        starts = (trace.operations.start_ns, self.host.start_ns)
        self.base_ns = min(int(column.min()) for column in starts if len(column))

    def write(self) -> tuple[Written, ...]:
        root = {
            "schemaVersion": 1,
            "displayTimeUnit": "ns",
            "baseTimeNanoseconds": self.base_ns,
            "traceName": self.trace.path.name,
            "exporter": "profiling-lab",
        }
        self.out.write(json.dumps(root)[:-1].encode() + b', "traceEvents": [')
        # Slices come before their arrows, because viewers keep the order of simultaneous events.
        host, gpu = self.host, gpu_slices(self.trace)
        self._lines("", 0, self._names(host, gpu), first=True)
        self._lines("calls and ranges", len(host.start_ns), self._host_events(host))
        operations = len(gpu.start_ns)
        self._lines("GPU operations", operations, self._operations(gpu))
        arrows = self._lines("arrows", operations, self._arrows(host, gpu))
        self.out.write(b"\n]}\n")
        trace = self.trace
        counts = {"GPU operations": operations, "calls": len(trace.calls), "ranges": len(trace.ranges)}
        counts |= {
            "overheads": len(trace.overheads),
            "arrows": arrows // 2,
            "tracks": len(host.tracks + gpu.tracks),
        }
        return tuple(Written(what, rows) for what, rows in counts.items())

    def _lines(self, what: str, total: int, events: Iterator[str], *, first: bool = False) -> int:
        """Write events in chunks; returns their number."""
        done, chunk = 0, []
        for event in events:
            chunk.append(event)
            if len(chunk) == _CHUNK:
                done, first = done + len(chunk), self._flush(chunk, first)
                self.progress(what, min(done, total), total)
        done += len(chunk)
        self._flush(chunk, first)
        if what:
            self.progress(what, total, total)
        return done

    def _flush(self, chunk: list[str], first: bool) -> bool:
        if chunk:
            self.out.write(("\n" if first else ",\n").encode() + ",\n".join(chunk).encode())
            chunk.clear()
            return False
        return first

    def _names(self, *slices: Slices) -> Iterator[str]:
        seen = set()
        for track in (track for part in slices for track in part.tracks):
            where = {"ph": "M", "pid": track.pid, "tid": track.tid, "ts": 0}
            if track.pid not in seen:
                seen.add(track.pid)
                yield json.dumps(where | {"name": "process_name", "args": {"name": track.process_name}})
                order = {"sort_index": track.process_order}
                yield json.dumps(where | {"name": "process_sort_index", "args": order})
            yield json.dumps(where | {"name": "thread_name", "args": {"name": track.name}})
            yield json.dumps(where | {"name": "thread_sort_index", "args": {"sort_index": track.order}})

    def _slice(self, start_ns: int, end_ns: int, head: str, at: str, args: str) -> str:
        ts, dur = microseconds(start_ns - self.base_ns), microseconds(end_ns - start_ns)
        return f'{{"ph":"X",{head},{at},"ts":{ts},"dur":{dur}{args}}}'

    def _host(self) -> Slices:
        """Calls, ranges and overheads, which nest and share tracks."""
        operations, calls, ranges = self.trace.operations, self.trace.calls, self.trace.ranges
        parts = (calls, ranges, self.trace.overheads)
        # Ranges that were open when the recording stopped end with it.
        last_ns = max(int(column.max()) for column in (operations.end_ns, calls.end_ns) if len(column))
        ended = np.where(ranges.end_ns == OPEN_END, np.maximum(ranges.start_ns, last_ns), ranges.end_ns)
        # Extreme times of a damaged file would make the other events invisible.
        around = (int(operations.start_ns.min()) - _AROUND_NS, int(operations.end_ns.max()) + _AROUND_NS)
        return host_slices(
            self.trace,
            np.concatenate([part.start_ns for part in parts]).clip(*around),
            np.concatenate([calls.end_ns, ended, self.trace.overheads.end_ns]).clip(*around),
            np.concatenate([part.thread for part in parts]),
            np.concatenate([part.process for part in parts]),
        )

    def _host_events(self, slices: Slices) -> Iterator[str]:
        calls, ranges, overheads = self.trace.calls, self.trace.ranges, self.trace.overheads
        call_heads = [_head(_call_category(name), name) for name in calls.names]
        kinds = {int(kind): _head("overhead", kind.name.replace("_", " ").title()) for kind in OverheadKind}
        range_heads = {
            category: [_head(category, name) for name in ranges.names]
            for category in ("cpu_op", "user_annotation")
        }
        correlation = self._correlation(calls)
        for rows, at in _chunks(slices.order(), slices):
            mine = np.where(rows < len(calls), rows, 0)  # other rows look up call 0, and do not use it
            columns = (calls.name, correlation) if len(calls) else (mine, mine)
            names, ids = (column[mine].tolist() for column in columns)
            for row, (a, b, t), name, number in zip(rows.tolist(), at, names, ids, strict=True):
                if row < len(calls):
                    yield self._slice(a, b, call_heads[name], t, f',"args":{{"correlation":{number}}}')
                elif (row := row - len(calls)) < len(ranges):
                    yield self._range(row, a, b, range_heads, t)
                else:
                    row -= len(ranges)
                    yield self._slice(a, b, kinds.get(int(overheads.kind[row]), kinds[0]), t, "")

    def _range(self, row: int, start_ns: int, end_ns: int, heads: dict[str, list[str]], at: str) -> str:
        """An NVTX range or operator, with the sequence number that links backward to forward."""
        ranges = self.trace.ranges
        sequence, evaluates = int(ranges.sequence[row]), int(ranges.evaluates[row])
        args: dict[str, object] = {}
        if sequence != NO_SEQUENCE:
            args["Sequence number"] = sequence
            args["Fwd thread id"] = int(evaluates == Evaluates.NODE)
        if domain := ranges.domains.get(int(ranges.domain[row])):
            args["domain"] = domain
        if text := self._call_stack(int(ranges.stack[row])):
            args["Call stack"] = text
        if ranges.end_ns[row] == OPEN_END:
            args["open"] = "it had not ended when the recording stopped"
        head = heads["cpu_op" if args.get("Sequence number") is not None or evaluates else "user_annotation"]
        text = f',"args":{json.dumps(args)}' if args else ""
        return self._slice(start_ns, end_ns, head[ranges.name[row]], at, text)

    def _call_stack(self, stack: int) -> str:
        """The stack of an operator in the form of torch 1.8 to 1.11, with the executing lines."""
        if stack not in self.call_stacks:
            frames = self.trace.stacks.of(stack) if self.trace.stacks_found.form == EXACT_LINES else ()
            self.call_stacks[stack] = ";".join(f"{f.file}({f.line}): {f.function}" for f in frames)
        return self.call_stacks[stack]

    def _operations(self, slices: Slices) -> Iterator[str]:
        args, correlation = OperationArgs(self.trace, self.own), self._correlation(self.trace.operations)
        for rows, at in _chunks(slices.order(), slices):
            columns = (at, correlation[rows].tolist(), args.of(rows))
            for (a, b, t), number, (head, text) in zip(*columns, strict=True):
                yield self._slice(a, b, head, t, f',"args":{{"correlation":{number},{text}}}')

    def _arrows(self, host: Slices, gpu: Slices) -> Iterator[str]:
        """Arrows from the start of each call to the start of its operation."""
        call, base = self.launched_by, self.base_ns
        host_at, gpu_at = _places(host), _places(gpu)
        for rows, _ in _chunks(np.flatnonzero(call >= 0), gpu):
            calls = call[rows]
            columns = (rows, host.start_ns[calls], host.track[calls], gpu.start_ns[rows], gpu.track[rows])
            for row, t0, on, t1, to in zip(*(column.tolist() for column in columns), strict=True):
                shared = f'"cat":"ac2g","name":"ac2g","id":{row + 1}'
                yield f'{{"ph":"s",{shared},{host_at[on]},"ts":{microseconds(t0 - base)}}}'
                yield f'{{"ph":"f","bp":"e",{shared},{gpu_at[to]},"ts":{microseconds(t1 - base)}}}'

    def _correlation(self, table: Operations | Calls) -> I64:
        """Ids that are unique over all processes, as readers of this format expect."""
        if len(self.trace.pids) < 2:
            return table.correlation
        apart = table.process.astype(np.int64) << 32 | table.correlation & 0xFFFFFFFF
        return np.where(table.correlation < 0, table.correlation, apart)


def microseconds(ns: int) -> str:
    """Nanoseconds (not negative) as microseconds, the same whether a reader rounds or truncates."""
    whole, part = divmod(ns, 1000)
    return f"{whole}.{part:03d}1" if part else str(whole)


def _head(category: str, name: str) -> str:
    return f'"cat":"{category}","name":{json.dumps(name)}'


def _call_category(name: str) -> str:
    return "cuda_driver" if name.startswith("cu") and not name.startswith("cuda") else "cuda_runtime"


def _places(slices: Slices) -> list[str]:
    return [f'"pid":{track.pid},"tid":{track.tid}' for track in slices.tracks]


def _chunks(rows: I64, slices: Slices) -> Iterator[tuple[I64, Iterator[tuple[int, int, str]]]]:
    """Rows in chunks, with the start, end and track of each."""
    places = _places(slices)
    for first in range(0, len(rows), _CHUNK):
        chunk = rows[first : first + _CHUNK]
        start, end, track = (c[chunk].tolist() for c in (slices.start_ns, slices.end_ns, slices.track))
        yield chunk, zip(start, end, (places[number] for number in track), strict=True)
