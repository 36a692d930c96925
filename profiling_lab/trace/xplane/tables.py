# SPDX-License-Identifier: Apache-2.0
"""Operations, calls and ranges from the planes of an XPlane file.

A stream of a GPU is a line of its plane; other lines of it are summaries that tools add. Calls are the events
of host lines with a correlation id. All other events of the host are ranges: annotations, XLA's own and those
of JAX's Python tracer (`$train.py:12 step`), which have a domain of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache

import numpy as np

from profiling_lab.records import dataclass
from profiling_lab.trace.call_stacks import HLO_LINES, CallTable, StacksFound, unknown_facts
from profiling_lab.trace.columns import (
    FARTHEST_NS,
    I32,
    NO_SEQUENCE,
    Calls,
    MemoryKind,
    OperationKind,
    Operations,
    Ranges,
    Trait,
    full,
)
from profiling_lab.trace.extras import LaunchShape, LaunchShapes, MemoryEvents
from profiling_lab.trace.facts import whole_number
from profiling_lab.trace.kernel_names import base_name
from profiling_lab.trace.process_ids import Registry
from profiling_lab.trace.step_methods import STEP_NAME
from profiling_lab.trace.xplane.hlo import UNKNOWN, Origin, Programs
from profiling_lab.trace.xplane.space import GPU, HOST, Event, Line, Space, Stats, text_of

PYTHON = 1
"""the domain of the functions of JAX's Python tracer"""
_STREAM = re.compile(r"^Stream #(\d+)")
_COPY = re.compile(r"^(?:Memcpy([HDP])2([HDP])|Copy(Host|Device)To(Host|Device)|MemcpyOther)$")
_ALLOCATOR = re.compile(r"^GPU_(\d+)_")
_DETAIL = re.compile(r"(\w+):(\S+)")
_TIDS = 1 << 24
_DAMAGED = "compiled programs that cannot be read"
_IMPOSSIBLE = "GPU operations at impossible times (skipped)"
_BACKWARD = Trait.IS_BACKWARD | Trait.OWN_STACK_ANSWERS


@dataclass(frozen=True, slots=True)
class _Work:
    """A GPU operation."""

    device: int
    stream: int
    event: Event
    details: dict[str, str]

    @property
    def kind(self) -> OperationKind:
        if "memset_details" in self.event.stats or self.event.name == "Memset":
            return OperationKind.SET
        is_copy = "memcpy_details" in self.event.stats or _COPY.match(self.event.name)
        return OperationKind.COPY if is_copy else OperationKind.KERNEL

    @property
    def name(self) -> str:
        if self.kind is OperationKind.SET:
            return "memset"
        return _copy_name(self.event.name) if self.kind is OperationKind.COPY else _kernel(self.event.name)

    @property
    def memory(self) -> tuple[MemoryKind, MemoryKind]:
        """That it reads and that it writes, as far as the file says."""
        if self.kind is OperationKind.SET:
            return MemoryKind.UNKNOWN, _memory(self.details.get("kind"))
        return _memory(self.details.get("kind_src")), _memory(self.details.get("kind_dst"))


class SpaceTables:
    """The tables of a file. Process and thread numbers come from these registries."""

    def __init__(self, space: Space, processes: Registry, threads: Registry) -> None:
        self.space = space
        self.pid = max(whole_number(space.facts.get("process_id"), 0), 0)
        self.programs = Programs(space.modules)
        self._processes, self._threads = processes, threads
        self.skipped = 0
        self.thread_names: dict[int, str] = {}

    @cached_property
    def work(self) -> tuple[_Work, ...]:
        every = [
            _Work(plane.ordinal, _stream(line), event, _details(event.stats))
            for plane in self.space.named(GPU)
            for line in plane.lines
            if _STREAM.match(line.name)
            for event in line.events
        ]
        kept = tuple(one for one in every if _is_possible(one.event))
        self.skipped = len(every) - len(kept)
        return kept

    def operations(self) -> tuple[Operations, dict[str, int]]:
        work = self.work
        number, names = _numbered([one.name for one in work])
        memory = np.array([one.memory for one in work] or np.empty((0, 2)), dtype=np.uint8)
        operations = Operations(
            kind=np.array([one.kind for one in work], dtype=np.uint8),
            start_ns=np.array([one.event.start_ns for one in work], dtype=np.int64),
            end_ns=np.array([max(one.event.start_ns, one.event.end_ns) for one in work], dtype=np.int64),
            process=self._process(len(work)),
            device=np.array([one.device for one in work], dtype=np.int32),
            stream=np.array([one.stream for one in work], dtype=np.int64),
            correlation=np.array([_correlation(one.event) for one in work], dtype=np.int64),
            name=number,
            size_bytes=np.array([_size(one.details) for one in work], dtype=np.int64),
            names=names,
            short_names=tuple(map(base_name, names)),
            source_memory=memory[:, 0].copy(),
            target_memory=memory[:, 1].copy(),
        )
        _ = self.calls  # which decodes the programs, and counts the damaged ones
        repairs = {_IMPOSSIBLE: self.skipped, _DAMAGED: self.programs.damaged}
        return operations, {what: count for what, count in repairs.items() if count}

    @cached_property
    def calls(self) -> CallTable:
        """Calls have the Python stack of the HLO operation that they launch."""
        found = [(thread, event) for thread, event in self._host_events if "correlation_id" in event.stats]
        launched = self._origins_by_correlation()
        origins = [launched.get(_correlation(event)) or self._origin(event) or UNKNOWN for _, event in found]
        number, names = _numbered([event.name for _, event in found])
        stack = np.array([origin.stack for origin in origins], dtype=np.int32)
        nothing = unknown_facts(len(found))
        calls = Calls(
            start_ns=np.array([event.start_ns for _, event in found], dtype=np.int64),
            end_ns=np.array([event.end_ns for _, event in found], dtype=np.int64),
            process=self._process(len(found)),
            thread=self._thread([thread for thread, _ in found]),
            correlation=np.array([_correlation(event) for _, event in found], dtype=np.int64),
            name=number,
            names=names,
            stack=stack,
            next_sequence=nothing.next_sequence,
            node_sequence=nothing.node_sequence,
            counter=nothing.counter,
            node_counter=nothing.node_counter,
            node_name=nothing.node_name,
            node_names=(),
            # The line of an operation that JAX derived for backward is that of forward.
            traits=np.array([_BACKWARD if one.is_backward else 0 for one in origins], dtype=np.uint8),
            own_ns=nothing.own_ns,
        )
        noted = StacksFound(HLO_LINES if stack.any() else "", int((stack > 0).sum()), 0, 0)
        return CallTable(calls, self.programs.builder.build(), noted)

    def ranges(self) -> Ranges:
        found = [(t, e) for t, e in self._host_events if _is_range(e)]
        number, names = _numbered([_range_name(event) for _, event in found])
        python = [PYTHON if event.name.startswith("$") else 0 for _, event in found]
        return Ranges(
            start_ns=np.array([event.start_ns for _, event in found], dtype=np.int64),
            end_ns=np.array([event.end_ns for _, event in found], dtype=np.int64),
            process=self._process(len(found)),
            thread=self._thread([thread for thread, _ in found]),
            name=number,
            names=names,
            sequence=full(len(found), NO_SEQUENCE),
            evaluates=np.zeros(len(found), dtype=np.uint8),
            domain=np.array(python, dtype=np.int64),
            domains={PYTHON: "Python"} if any(python) else {},
            stack=np.zeros(len(found), dtype=np.int32),
        )

    def launch_shapes(self) -> LaunchShapes | None:
        shapes = [_launch_shape(one.details) for one in self.work]
        distinct = {shape: i for i, shape in enumerate(dict.fromkeys(s for s in shapes if s is not None))}
        number = np.array([-1 if s is None else distinct[s] for s in shapes], dtype=np.int32)
        return LaunchShapes(number, tuple(distinct)) if distinct else None

    def memory(self) -> MemoryEvents | None:
        """The memory that XLA's allocators of GPUs held after each allocation."""
        rows = []
        for _, event in self._host_events:
            match = _ALLOCATOR.match(text_of(event.stats, "allocator_name"))
            if match and event.name in ("MemoryAllocation", "MemoryDeallocation"):
                size = whole_number(event.stats.get("allocation_bytes"), 0)
                change = size if event.name == "MemoryAllocation" else -size
                held = whole_number(event.stats.get("bytes_allocated"), NO_SEQUENCE)
                rows.append((int(match[1]), event.start_ns, change, held))
        if not rows:
            return None
        device, time_ns, change_bytes, held_bytes = np.array(rows, dtype=np.int64).T.copy()
        return MemoryEvents(self._process(len(rows)), device, time_ns, change_bytes, held_bytes)

    @cached_property
    def _host_events(self) -> list[tuple[int, Event]]:
        """Global thread id and event, in the order of the file."""
        return [*self._read_host()]

    def _read_host(self) -> Iterator[tuple[int, Event]]:
        lines = [line for plane in self.space.named(HOST) for line in plane.lines]
        taken = {line.id for line in lines if 0 < line.id < _TIDS}
        free = (tid for tid in range(1, _TIDS) if tid not in taken)
        for line in lines:
            # Ids of lines are ids of threads, or hashes.
            tid = line.id if 0 < line.id < _TIDS else next(free)
            thread = self._global_pid | tid
            self.thread_names.setdefault(thread, line.name.rpartition("/")[0] or line.name)
            yield from ((thread, event) for event in line.events if _is_possible(event))

    @cached_property
    def steps(self) -> int:
        """The number of annotated steps."""
        return sum("step_num" in event.stats and _is_range(event) for _, event in self._host_events)

    @property
    def _global_pid(self) -> int:
        return (self.pid & 0xFFFFFF) << 24

    def _origins_by_correlation(self) -> dict[int, Origin]:
        """What launched operations come from; of a call that launches several, only if it is the same."""
        out: dict[int, Origin] = {}
        for one in self.work:
            origin, key = self._origin(one.event), _correlation(one.event)
            if origin is not None:
                out[key] = origin if out.get(key, origin) == origin else UNKNOWN
        return out

    def _origin(self, event: Event) -> Origin | None:
        operation = event.stats.get("hlo_op")
        if not isinstance(operation, str):
            return None
        program = whole_number(event.stats.get("program_id"))
        return self.programs.origin(program, text_of(event.stats, "hlo_module"), operation)

    def _process(self, count: int) -> I32:
        return self._processes.number(full(count, self._global_pid))

    def _thread(self, threads: list[int]) -> I32:
        return self._threads.number(np.array(threads, dtype=np.int64))


def _numbered(texts: list[str]) -> tuple[I32, tuple[str, ...]]:
    known = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return np.array([known[text] for text in texts], dtype=np.int32), tuple(known)


def _is_possible(event: Event) -> bool:
    return abs(event.start_ns) < FARTHEST_NS and abs(event.end_ns) < FARTHEST_NS


def _is_range(event: Event) -> bool:
    """Events without a length are marks and notes of the allocator."""
    return "correlation_id" not in event.stats and event.end_ns > event.start_ns


def _range_name(event: Event) -> str:
    """Steps are named as in other traces: `train` of jax.profiler.StepTraceAnnotation is `train step 3`."""
    if "step_num" not in event.stats:
        return event.name
    step = f"step {text_of(event.stats, 'step_num')}"
    return f"{event.name} {step}" if STEP_NAME.match(f"{event.name} {step}") else step


def _correlation(event: Event) -> int:
    return whole_number(event.stats.get("correlation_id"))


def _stream(line: Line) -> int:
    match = _STREAM.match(line.name)
    return int(match[1]) if match else line.id


def _details(stats: Stats) -> dict[str, str]:
    """`regs:32 grid:1,1,1 block:2,1,1` by name."""
    names = ("kernel_details", "memcpy_details", "memset_details")
    return next((_details_in(text_of(stats, name)) for name in names if name in stats), {})


@lru_cache(maxsize=65536)
def _details_in(text: str) -> dict[str, str]:
    return dict(_DETAIL.findall(text))


def _kernel(name: str) -> str:
    return name.removesuffix(" [clone .kd]").removesuffix(".kd") or "unnamed kernel"


def _copy_name(name: str) -> str:
    """`MemcpyH2D` is `memcpy HtoD`, as in the other formats."""
    match = _COPY.match(name)
    letters = [part[0] for part in match.groups() if part] if match else []
    return f"memcpy {'to'.join(letters)}" if letters else "memcpy unknown"


def _memory(text: str | None) -> MemoryKind:
    return MemoryKind.__members__.get((text or "").upper(), MemoryKind.UNKNOWN)


def _size(details: dict[str, str]) -> int:
    return max(whole_number(details.get("size"), 0), 0)


def _launch_shape(details: dict[str, str]) -> LaunchShape | None:
    grid, block = (_extent(details.get(name, "")) for name in ("grid", "block"))
    if grid is None or block is None:
        return None
    registers = whole_number(details.get("regs"), 0)
    noted = [details[name] for name in ("static_shared", "dynamic_shared", "group_mem") if name in details]
    shared = sum(max(whole_number(text, 0), 0) for text in noted)
    return LaunchShape(grid, block, registers if registers > 0 else None, shared if noted else None)


def _extent(text: str) -> tuple[int, int, int] | None:
    numbers = [whole_number(part) for part in text.split(",")]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 and min(numbers) >= 0 else None
