# SPDX-License-Identifier: Apache-2.0
"""Traces of torch.profiler: operators instead of NVTX ranges, stacks of operators instead of calls.

torch 1.8 to 1.11 stored the call stack with the executing lines for each operator. Later versions write an
event per Python function instead, which only has the first line of the function.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.trace.call_stacks import (
    EXACT_LINES,
    FUNCTION_LINES,
    CallTable,
    StacksFound,
    unknown_facts,
)
from profiling_lab.trace.columns import (
    I32,
    I64,
    NO_SEQUENCE,
    U8,
    Calls,
    Evaluates,
    MemoryKind,
    Operations,
    Overheads,
    Ranges,
    Syncs,
    dense,
    full,
)
from profiling_lab.trace.extras import (
    CollectiveFacts,
    Device,
    InputShapes,
    LaunchShapes,
    MemoryEvents,
    Style,
)
from profiling_lab.trace.facts import Gpu, TraceInfo
from profiling_lab.trace.kineto.collectives import (
    Collectives,
    collective_facts,
    collectives,
    process_groups,
)
from profiling_lab.trace.kineto.devices import gpu_of, listed_devices
from profiling_lab.trace.kineto.events import ChromeEvents, Table, read_events
from profiling_lab.trace.kineto.flows import counters_told_apart, evaluates_a_node
from profiling_lab.trace.kineto.info import PLAUSIBLE_EPOCH_NS, kineto_info
from profiling_lab.trace.kineto.memory_history import chrome_memory_history
from profiling_lab.trace.kineto.overheads import chrome_overheads
from profiling_lab.trace.kineto.processes import Processes
from profiling_lab.trace.kineto.shapes import input_shapes, launch_shapes
from profiling_lab.trace.kineto.stacks import BLEED_NS, PythonStacks, parse_frame, python_stacks
from profiling_lab.trace.kineto.syncs import chrome_syncs
from profiling_lab.trace.memory_history import MemoryHistory
from profiling_lab.trace.process_ids import Registry
from profiling_lab.trace.source import Recorder, Source, Tables
from profiling_lab.trace.stacks import StackBuilder, Stacks

_MEMORY = re.compile(r"^(?:Memcpy \w+|Memset) \((?:(?P<source>[\w ]+?) -> )?(?P<target>[\w ]+)\)$")
_ELSEWHERE = (
    ("mtia_", "its accelerator is an MTIA, whose events (mtia_...) are not supported"),
    ("privateuse1_", "its accelerator is from a plugin (privateuse1_...), whose events are not supported"),
    (
        "cuda_profiler_range",
        "it has counters of CUPTI ranges (profiler_metrics=[...]), with which torch.profiler records no "
        "kernels: record without them",
    ),
)
_EARLY = "GPU operations that begin before their launch (times are not changed)"
_NOT_NESTED = "Python functions that overlap others without nesting (not in the stacks)"


class ChromeSource(Source):
    """A torch.profiler file, read completely."""

    recorder: Recorder = "torch.profiler"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes = Registry()
        self.threads = Registry()
        self.events: ChromeEvents = read_events(path)
        self._ids = Processes(self.events, self.processes, self.threads)

    @property
    def is_cut(self) -> bool:
        return bool(self.events.cut)

    def why_empty(self) -> str:
        if self.events.cut:
            return f"{self.events.cut}; torch.profiler writes GPU events last: copy or export it again"
        known = [text for begin, text in _ELSEWHERE if any(o.startswith(begin) for o in self.events.others)]
        return (
            known[0]
            if known
            else "nothing ran on the GPU, or ProfilerActivity.CUDA was not among the activities"
        )

    def operations(self) -> tuple[Operations, dict[str, int]]:
        table, calls = self.events["operations"], self.call_table().calls
        repairs = dict(self.events.repairs)
        process = self._ids.of_operations(table, calls.process, calls.correlation, calls.start_ns, repairs)
        correlation = _known(table["correlation"])
        call = _analysis.call_of(process, correlation, calls.process, calls.correlation, calls.start_ns)
        early = int((table["start_ns"] < np.append(calls.start_ns, NO_SEQUENCE)[call]).sum())
        if early:
            repairs[_EARLY] = early
        if self._python is not None and self._python.not_nested:
            repairs[_NOT_NESTED] = self._python.not_nested
        name, texts = self._names(table)
        numbers, names = _merged(name, [_operation_name(text) for text in texts])
        operations = Operations(
            kind=table["kind"],
            start_ns=table["start_ns"],
            end_ns=table["end_ns"],
            process=process,
            device=self._ids.device(table),
            stream=_known(table["stream"]),
            correlation=correlation,
            name=numbers,
            size_bytes=np.maximum(table["bytes"], 0),
            names=names,
            short_names=tuple(_base_name(name) for name in names),
            source_memory=_memory(texts, "source")[name],
            target_memory=_memory(texts, "target")[name],
        )
        return operations, repairs

    def call_table(self) -> CallTable:
        return self._tables[0]

    def ranges(self) -> Ranges:
        return self._tables[1]

    def overheads(self) -> Overheads:
        table = self.events["overheads"]
        return chrome_overheads(table, self.events.texts, *self._ids.of_slices(table))

    def job_facts(self) -> Mapping[str, object]:
        distributed = self.events.facts.get("distributedInfo")
        return distributed if isinstance(distributed, dict) else {}

    def info(self, whole: Tables) -> TraceInfo:
        return kineto_info(self.events, whole)

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu_of(device) for device in self.events.devices)

    def devices(self, used: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Device]:
        listed = listed_devices(self.events.devices)
        return {(process, ordinal): listed[ordinal] for process, ordinal in used if ordinal in listed}

    def wall_clock(self, whole: Tables) -> int | None:
        # The reader has already added baseTimeNanoseconds; older files use microseconds since 1970.
        first = int(whole.operations.start_ns.min()) if len(whole.operations) else 0
        return 0 if first > PLAUSIBLE_EPOCH_NS else None

    def syncs(self, whole: Tables) -> Syncs:
        """Synchronisation of host and streams, if recorded with enable_cuda_sync_events."""
        table, calls = self.events["syncs"], whole.calls
        process = self._ids.of_operations(table, calls.process, calls.correlation, calls.start_ns, {})
        return chrome_syncs(table, self.events.texts, process)

    def launch_shapes(self, whole: Tables) -> LaunchShapes | None:
        return launch_shapes(self.events)

    def input_shapes(self, whole: Tables) -> InputShapes | None:
        return input_shapes(self.events)

    def range_styles(self, whole: Tables) -> U8:
        return full(len(whole.ranges), Style.OPERATOR, np.uint8)

    def memory(self) -> MemoryEvents | None:
        """The memory of torch's caching allocator after each allocation, if recorded with profile_memory."""
        rows = self.events.memory
        if not len(rows["time_ns"]):
            return None
        change = np.where(rows["bytes"] == NO_SEQUENCE, 0, rows["bytes"])
        process = self._ids.of_slices(rows)[0]
        return MemoryEvents(process, rows["device"], rows["time_ns"], change, rows["reserved"])

    def memory_history(self) -> tuple[MemoryHistory, ...]:
        process, thread = self._ids.of_slices(self.events.memory)
        return chrome_memory_history(self.events.memory, process, thread, self.ranges())

    def noted_collectives(self) -> Collectives:
        """The collectives of communication kernels, as in the file."""
        return collectives(self.events["operations"]["collective"], self.events.texts)

    def collectives(self, whole: Tables, rows: npt.NDArray[np.intp]) -> list[CollectiveFacts | None]:
        groups = process_groups(self.job_facts())
        return collective_facts(self.noted_collectives(), groups, whole.operations, rows)

    @cached_property
    def _tables(self) -> tuple[CallTable, Ranges]:
        """Calls and operators, which share one stack tree."""
        events = self.events["calls"]
        process, thread = self._ids.of_slices(events)
        operators = self._operators()
        if self._python is not None:
            form, stacks = FUNCTION_LINES, self._python.stacks
            stack = self._python.stack[: len(thread)]
        else:
            form, stacks = EXACT_LINES, self._noted_stacks[0]
            stack = _stack_of_operator(operators, events["start_ns"], thread)
        numbers, names = self._names(events)
        nothing = unknown_facts(len(thread))
        calls = Calls(
            start_ns=events["start_ns"],
            end_ns=events["end_ns"],
            process=process,
            thread=thread,
            correlation=_known(events["correlation"]),
            name=numbers,
            names=names,
            stack=stack,
            next_sequence=nothing.next_sequence,
            node_sequence=nothing.node_sequence,
            counter=nothing.counter,
            node_counter=nothing.node_counter,
            node_name=nothing.node_name,
            node_names=(),
            traits=np.zeros(len(thread), dtype=np.uint8),
            own_ns=nothing.own_ns,
        )
        found = StacksFound(form if stack.any() else "", int((stack > 0).sum()), 0, 0)
        return CallTable(calls, stacks, found), operators

    def _operators(self) -> Ranges:
        """Operators and annotations, each with its own stack or that of the Python functions around it."""
        events = self.events["operators"]
        process, thread = self._ids.of_slices(events)
        numbers, names = self._names(events)
        sequence = counters_told_apart(self.events)
        evaluates = np.where(
            (events["forward_thread"] > 0) & (sequence >= 0), Evaluates.NODE, Evaluates.NOTHING
        )
        evaluates[evaluates_a_node(self.events)] = Evaluates.ENGINE
        own_stack = self._noted_stacks[1]
        if self._python is not None:
            own_stack = self._python.stack[len(self.events["calls"]["thread"]) :]
        return Ranges(
            start_ns=events["start_ns"],
            end_ns=events["end_ns"],
            process=process,
            thread=thread,
            name=numbers,
            names=names,
            sequence=np.where(sequence < 0, NO_SEQUENCE, sequence),
            evaluates=evaluates.astype(np.uint8),
            domain=full(len(thread), 0),
            domains={},
            stack=own_stack,
        )

    @cached_property
    def _python(self) -> PythonStacks | None:
        """Stacks at the start of each call and each operator; None without Python function events."""
        python = self.events["python"]
        if not len(python["thread"]):
            return None
        asked = [self.events["calls"], self.events["operators"]]
        at = np.concatenate([self._ids.of_slices(table)[1] for table in asked])
        time_ns = np.concatenate([table["start_ns"] for table in asked])
        return python_stacks(python, self.events.texts, self._ids.of_slices(python)[1], time_ns, at)

    @cached_property
    def _noted_stacks(self) -> tuple[Stacks, I32]:
        """Stacks that operators have as text, innermost frame first; per operator its row."""
        number, texts = dense(self.events["operators"]["call_stack"])
        builder = StackBuilder()
        rows = [self._noted_stack(builder, text) for text in texts.tolist()]
        return builder.build(), np.array([*rows, 0], dtype=np.int32)[number]

    def _noted_stack(self, builder: StackBuilder, text: int) -> int:
        if text < 0:
            return 0
        frames = (parse_frame(frame) for frame in self.events.texts[text].split(";"))
        return builder.add(frame for frame in frames if frame)

    def _names(self, table: Table) -> tuple[I32, tuple[str, ...]]:
        number, used = dense(table["name"])
        return number, tuple(self.events.texts[i] for i in used.tolist())


def _stack_of_operator(ranges: Ranges, time_ns: I64, thread: I32) -> I32:
    """Per moment the stack of the innermost operator around it that has one."""
    parent, innermost, _ = _analysis.contain(
        ranges.start_ns, ranges.end_ns, ranges.thread, time_ns, thread, BLEED_NS
    )
    holder = _analysis.nearest_marked(parent, (ranges.stack > 0).astype(np.uint8))
    row = np.append(holder, np.int32(-1))[innermost]
    return np.append(ranges.stack, np.int32(0))[row].astype(np.int32)


def _operation_name(name: str) -> str:
    """`Memcpy HtoD (Pageable -> Device)` becomes `memcpy HtoD`, as in the other formats."""
    if name.startswith(("Memcpy ", "Memset ")):
        kind, _, rest = name.partition(" ")
        return f"memcpy {rest.partition(' ')[0]}" if kind == "Memcpy" else "memset"
    return name


def _memory(names: tuple[str, ...], side: str) -> U8:
    """MemoryKind of one side by name, from `Memcpy HtoD (Pageable -> Device)` or `Memset (Device)`."""
    known = {kind.name.replace("_", " "): kind for kind in MemoryKind}
    matches = (_MEMORY.match(name) for name in names)
    sides = [(m[side] or "").upper() if m else "" for m in matches]
    return np.array([known.get(text, MemoryKind.UNKNOWN) for text in sides], dtype=np.uint8)


def _base_name(name: str) -> str:
    """A kernel's own name, without namespaces, template arguments and parameters."""
    if name == "memset" or name.startswith("memcpy "):
        return name
    head = re.split(r"[<(]", name.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return head.split("::")[-1].split(" ")[-1] or name


def _merged(number: I32, names: list[str]) -> tuple[I32, tuple[str, ...]]:
    """Give equal names one number."""
    distinct = {name: i for i, name in enumerate(dict.fromkeys(names))}
    renumbered = np.array([distinct[name] for name in names], dtype=np.int32)
    return renumbered[number] if len(number) else number, tuple(distinct)


def _known(values: I64) -> I64:
    """Replace missing numbers by -1."""
    return np.where(values == NO_SEQUENCE, -1, values)
