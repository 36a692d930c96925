# SPDX-License-Identifier: Apache-2.0
"""Traces of torch.profiler: operators instead of NVTX ranges, stacks of operators instead of calls.

torch 1.8 to 1.11 noted with each operator the call stack with the executing lines; later versions write an
event per Python function instead, which knows the line where the function begins and no other.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

import numpy as np

from profiling_lab import _analysis
from profiling_lab.trace.call_stacks import StacksFound, unknown_facts
from profiling_lab.trace.chrome_events import ChromeEvents, Event, nanoseconds, read_events, whole
from profiling_lab.trace.columns import (
    I32,
    I64,
    NO_SEQUENCE,
    U8,
    Calls,
    Evaluates,
    MemoryKind,
    OperationKind,
    Operations,
    Overheads,
    Ranges,
    full,
)
from profiling_lab.trace.process_ids import Registry
from profiling_lab.trace.read_calls import CallTable
from profiling_lab.trace.read_overheads import chrome_overheads
from profiling_lab.trace.source import Recorder
from profiling_lab.trace.stacks import Frame, StackBuilder

EXACT_LINES = "torch.profiler call stacks"
FUNCTION_LINES = "torch.profiler Python functions"

_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
_MEMORY = re.compile(r"^(?:Memcpy \w+|Memset) \((?:(?P<source>[\w ]+?) -> )?(?P<target>[\w ]+)\)$")
_ENGINE = ("autograd::engine::evaluate_function", "torch::autograd::AccumulateGrad")
_BLEED_NS = 1000
_OPERATIONS = {"kernel": OperationKind.KERNEL, "copy": OperationKind.COPY, "set": OperationKind.SET}


class ChromeSource:
    """A torch.profiler file, read as a whole."""

    recorder: Recorder = "torch.profiler"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes = Registry()
        self.threads = Registry()
        self.events: ChromeEvents = read_events(path)

    def close(self) -> None:
        """Nothing stays open."""

    def recorder_facts(self) -> dict[str, str]:
        return {}

    def operations(self) -> tuple[Operations, dict[str, int]]:
        events = self.events.of(*_OPERATIONS)
        kinds = [kind for name, kind in _OPERATIONS.items() for _ in self.events.of(name)]
        start_ns, end_ns = nanoseconds(events, self.events.base_ns)
        numbers, names = _numbered([_operation_name(event) for event in events])
        args = [event.args for event in events]
        operations = Operations(
            kind=np.array(kinds, dtype=np.uint8),
            start_ns=start_ns,
            end_ns=end_ns,
            # A file has one process; the pid of a GPU event is the number of its device.
            process=full(len(events), self._process(), np.int32),
            device=np.array(
                [whole(a.device if a else None, whole(e.pid, 0)) for a, e in zip(args, events, strict=True)],
                dtype=np.int32,
            ),
            stream=_column([a.stream if a else None for a in args]),
            correlation=_column([a.correlation if a else None for a in args]),
            name=numbers,
            size_bytes=np.maximum(_column([a.bytes if a else None for a in args]), 0),
            names=names,
            short_names=tuple(_base_name(name) for name in names),
            source_memory=_memory(events, "source"),
            target_memory=_memory(events, "target"),
        )
        return operations, self.events.repairs

    def call_table(self) -> CallTable:
        return self._tables[0]

    def ranges(self) -> Ranges:
        return self._tables[1]

    def overheads(self) -> Overheads:
        events = self.events.of("overhead")
        times = nanoseconds(events, self.events.base_ns)
        process = full(len(events), self._process(), np.int32)
        return chrome_overheads(events, *times, process, self._thread(events))

    def _process(self) -> int:
        pids = (whole(event.pid, 0) for event in self.events.of("call", "operator", "python"))
        return int(self.processes.number(np.array([next(pids, 0) << 24], dtype=np.int64))[0])

    def _thread(self, events: list[Event]) -> I32:
        ids = [(whole(e.pid, 0) & 0xFFFFFF) << 24 | (whole(e.tid, 0) & 0xFFFFFF) for e in events]
        return self.threads.number(np.array(ids, dtype=np.int64))

    @cached_property
    def _tables(self) -> tuple[CallTable, Ranges]:
        """Calls and operators, which share the tree of stacks."""
        builder = StackBuilder()
        ranges = self._operators(builder)
        events = self.events.of("call")
        start_ns, end_ns = nanoseconds(events, self.events.base_ns)
        thread = self._thread(events)
        form = EXACT_LINES
        stack = self._stack_of_operator(ranges, start_ns, thread)
        if self.events.of("python"):
            form, stack = FUNCTION_LINES, self._python_stacks(builder, start_ns, thread)
        numbers, names = _numbered([str(event.name) for event in events])
        nothing = unknown_facts(len(events))
        calls = Calls(
            start_ns=start_ns,
            end_ns=end_ns,
            process=full(len(events), self._process(), np.int32),
            thread=thread,
            correlation=_column([event.args.correlation if event.args else None for event in events]),
            name=numbers,
            names=names,
            stack=stack,
            next_sequence=nothing.next_sequence,
            node_sequence=nothing.node_sequence,
            counter=nothing.counter,
            node_counter=nothing.node_counter,
            node_name=nothing.node_name,
            node_names=(),
            traits=np.zeros(len(events), dtype=np.uint8),
        )
        found = StacksFound(form if stack.any() else "", int((stack > 0).sum()), 0, 0)
        return CallTable(calls, builder.build(), found), ranges

    def _operators(self, builder: StackBuilder) -> Ranges:
        """Operators and annotations, each with its own stack or that of the Python functions around it."""
        events = self.events.of("operator")
        start_ns, end_ns = nanoseconds(events, self.events.base_ns)
        thread = self._thread(events)
        if self.events.of("python"):
            stack = self._python_stacks(builder, start_ns, thread)
        else:
            stack = self._noted_stacks(builder, events)
        numbers, names = _numbered([str(event.name) for event in events])
        sequence = _column([e.args.sequence if e.args else None for e in events])
        return Ranges(
            start_ns=start_ns,
            end_ns=end_ns,
            process=full(len(events), self._process(), np.int32),
            thread=thread,
            name=numbers,
            names=names,
            sequence=np.where(sequence < 0, NO_SEQUENCE, sequence),
            evaluates=np.array([_evaluates(event) for event in events], dtype=np.uint8),
            domain=full(len(events), 0),
            domains={},
            stack=stack,
        )

    @staticmethod
    def _noted_stacks(builder: StackBuilder, events: list[Event]) -> I32:
        """Stacks that operators carry as text, innermost frame first."""
        known: dict[str, int] = {"": 0}
        rows = np.zeros(len(events), dtype=np.int32)
        for i, event in enumerate(events):
            text = event.args.call_stack if event.args else None
            if isinstance(text, str):
                if text not in known:
                    known[text] = builder.add(_frames(text.split(";")))
                rows[i] = known[text]
        return rows

    @staticmethod
    def _stack_of_operator(ranges: Ranges, time_ns: I64, thread: I32) -> I32:
        """Per moment the stack of the nearest operator around it that has one."""
        parent, innermost, _ = _analysis.contain(
            ranges.start_ns, ranges.end_ns, ranges.thread, time_ns, thread, _BLEED_NS
        )
        holder = _analysis.nearest_marked(parent, (ranges.stack > 0).astype(np.uint8))
        row = np.append(holder, np.int32(-1))[innermost]
        return np.append(ranges.stack, np.int32(0))[row].astype(np.int32)

    def _python_stacks(self, builder: StackBuilder, time_ns: I64, thread: I32) -> I32:
        """Per moment the Python functions around it; each distinct innermost one is looked at once."""
        events = self.events.of("python")
        if not events:
            return full(len(time_ns), 0, np.int32)
        start_ns, end_ns = nanoseconds(events, self.events.base_ns)
        parent, innermost, _ = _analysis.contain(
            start_ns, end_ns, self._thread(events), time_ns, thread, _BLEED_NS
        )
        stack_of: dict[int, int] = {-1: 0}
        for row in np.unique(innermost).tolist():
            path, at = [], row
            while at >= 0:
                path.append(str(events[at].name))
                at = int(parent[at])
            stack_of.setdefault(row, builder.add(_frames(path)))
        rows = np.array(sorted(stack_of), dtype=np.int64)
        stacks = np.array([stack_of[row] for row in rows.tolist()], dtype=np.int32)
        return stacks[np.searchsorted(rows, innermost)]


def _frames(texts: list[str]) -> list[Frame]:
    """`path.py(12): forward` as frames; built-in functions and modules' names are none."""
    matches = (_FRAME.match(text.strip()) for text in texts)
    return [Frame(m["function"], m["file"], int(m["line"])) for m in matches if m]


def _evaluates(event: Event) -> Evaluates:
    if str(event.name).startswith(_ENGINE):
        return Evaluates.ENGINE
    if event.args and whole(event.args.forward_thread, 0) > 0 and whole(event.args.sequence) >= 0:
        return Evaluates.NODE
    return Evaluates.NOTHING


def _operation_name(event: Event) -> str:
    """`Memcpy HtoD (Pageable -> Device)` reads as `memcpy HtoD`, as in the other kinds of files."""
    name = str(event.name)
    if name.startswith(("Memcpy ", "Memset ")):
        kind, _, rest = name.partition(" ")
        return f"memcpy {rest.partition(' ')[0]}" if kind == "Memcpy" else "memset"
    return name


def _memory(events: list[Event], side: str) -> U8:
    """MemoryKind of one side, from `Memcpy HtoD (Pageable -> Device)` or `Memset (Device)`."""
    known = {kind.name.replace("_", " "): kind for kind in MemoryKind}
    matches = (_MEMORY.match(str(event.name)) for event in events)
    sides = [(m[side] or "").upper() if m else "" for m in matches]
    return np.array([known.get(text, MemoryKind.UNKNOWN) for text in sides], dtype=np.uint8)


def _base_name(name: str) -> str:
    """A kernel's own name, without namespaces, template arguments and parameters."""
    if name == "memset" or name.startswith("memcpy "):
        return name
    head = re.split(r"[<(]", name.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return head.split("::")[-1].split(" ")[-1] or name


def _numbered(texts: list[str]) -> tuple[I32, tuple[str, ...]]:
    numbers: dict[str, int] = {}
    rows = [numbers.setdefault(text, len(numbers)) for text in texts]
    return np.array(rows, dtype=np.int32), tuple(numbers)


def _column(values: list[object]) -> I64:
    return np.array([whole(value) for value in values], dtype=np.int64)
