# SPDX-License-Identifier: Apache-2.0
"""A made cluster: programs of several ranks run on made hosts, GPUs and links, and leave recordings.

    cluster = Cluster(ranks=2, program=training_step, conditions=Conditions(gpu_factor={1: 1.3}))
    cluster.run(steps=8)
    cluster.write(folder)             # run.rank0.sqlite, run.rank1.sqlite
    cluster.step_ns                   # how long a step took

A host makes its calls one after the other and waits where it must: for a stream, or for room in the launch
queue. An operation begins when its launch has reached the GPU, its stream is free and the events that it
waits for have come. A collective's transfer begins when the last rank has come to it. Hosts, launches and
kernels jitter, always the same way for the same line of the same step, and every rank's clock is off. Run
again without a fault it tells what mending that fault would have won.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from builders import VM, TraceBuilder
from made_traces.nccl_ranges import noted_by_nccl

EPOCH_NS = 1_780_000_000_000_000_000
BEGIN_NS = 50_000_000
CALL_NS, DISPATCH_NS, LATENCY_NS, PAUSE_NS, EVENT_NS, RETURN_NS = 2_800, 6_000, 4_500, 1_000, 1_500, 5_000
LEAVE_APART_NS = 800
QUEUE = 1_000
SAMPLE_NS = 500_000
COMPUTE, COMMUNICATION = 7, 20
_CLOCKS_NS = (0, 310_000, -180_000, 1_000_000_000, 95_000, -420_000, 7_000, 260_000)
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@dataclass(frozen=True)
class Conditions:
    """What is wrong with a job; nothing by default. Times and factors are by rank or by (rank, line)."""

    gpu_factor: dict[int, float] = field(default_factory=dict)
    host_factor: dict[int, float] = field(default_factory=dict)
    kernel_factor: dict[tuple[int, str], float] = field(default_factory=dict)
    extra_kernels: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    """how many, and ns of each"""
    host_ns: dict[tuple[int, str], int] = field(default_factory=dict)
    loader_ns: dict[int, int] = field(default_factory=dict)
    waits_at: frozenset[tuple[int, str]] = frozenset()
    """the host reads a value of the GPU there"""
    length: Callable[[int, int], float] = lambda rank, step: 1.0
    """of the sequences of a rank in a step"""
    link_factor: float = 1.0
    jitter: float = 0.01
    slow_step: tuple[int, int] | None = None
    """(step, ns): a rank's host stops once"""


@dataclass
class Operation:
    name: str
    step: int
    ns: int
    stream: int
    blocks: int
    reached_ns: int
    """when its launch has come to the GPU"""
    behind: list[Operation]
    meeting: Meeting | None = None
    start_ns: int = -1
    end_ns: int = -1


@dataclass
class Meeting:
    """A collective: it takes ns from when its last member has come."""

    members: int
    ns: int
    message_bytes: int | None = None
    come: list[Operation] = field(default_factory=list)


@dataclass
class Call:
    api: str
    line: str
    thread: int
    start_ns: int
    ns: int
    stream: int | None = None
    """that it waits for, or lets wait"""
    operation: Operation | None = None
    node: int | None = None


class Rank:
    """What a rank's program may do. It puts calls down; the cluster makes them when their time comes."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster, self.number, self.step, self.thread = cluster, number, 0, 1
        self.to_do: deque[Callable[[], bool]] = deque()
        """each is done, or says False where it must wait"""
        self.now_ns = BEGIN_NS + 40_000 * number
        self.calls: list[Call] = []
        self.operations: list[Operation] = []
        self.open: dict[int, deque[Operation]] = {}
        self.last: dict[int, Operation] = {}
        self.free_ns: dict[int, int] = {}
        self.waiting: dict[int, list[Operation]] = {}
        self.ranges: list[tuple[str, int, int]] = []
        self.samples: list[tuple[int, str]] = []
        self.step_ns: list[int] = []
        self.made: Counter[tuple[object, ...]] = Counter()
        self.seen: Counter[tuple[object, ...]] = Counter()

    @property
    def conditions(self) -> Conditions:
        return self.cluster.conditions

    @property
    def length(self) -> float:
        """How long the sequences of this step are."""
        return self.conditions.length(self.number, self.step)

    # what programs call

    def host(self, line: str, ns: int) -> None:
        """Python runs."""
        self._then(lambda: self._pass(line, ns))

    def load(self, line: str, ns: int) -> None:
        """The program waits for its data loader."""
        ns += self.conditions.loader_ns.get(self.number, 0)

        def wait() -> bool:
            begin = self.now_ns
            self._pass(line, ns)
            self.ranges.append((LOADER, begin, self.now_ns))
            return True

        self._then(wait)

    def kernel(
        self,
        line: str,
        name: str,
        ns: float,
        *,
        stream: int = COMPUTE,
        blocks: float = 512,
        node: int | None = None,
    ) -> None:
        """A kernel; node: the number in its step of the autograd node that it makes."""
        found = self.conditions
        if node is not None:
            node += 1_000 * self.step
        where = (self.number, line)
        if self.thread == 1:
            self._planted(line, stream)
        ns *= found.gpu_factor.get(self.number, 1.0) * found.kernel_factor.get(where, 1.0)
        self._then(lambda: self._launch(line, name, ns, stream, round(blocks), node))

    def backward(self, line: str, name: str, ns: float, node: int, blocks: float = 512) -> None:
        """A kernel of autograd's thread, which evaluates a node."""
        self.thread = 2
        self.kernel(line, name, ns, node=node, blocks=blocks)
        self.thread = 1

    def collective(
        self,
        line: str,
        kind: str,
        ns: int,
        *,
        members: int,
        group: object = "all",
        stream: int = COMMUNICATION,
        thread: int = 1,
        message_bytes: int | None = None,
    ) -> None:
        """One that all members of a group make in the same order. message_bytes: as NCCL notes it."""
        ns = round(ns * self.conditions.link_factor)
        name = f"ncclDevKernel_{kind}(ncclDevKernelArgsStorage<4096ul>)"
        place = (kind, group, self.made[kind, group])
        self.made[kind, group] += 1

        def meet() -> bool:
            meeting = self.cluster.meetings.setdefault(place, Meeting(members, ns, message_bytes))
            return self._launch(line, name, ns, stream, 24, None, meeting)

        self.thread = thread
        self._then(meet)
        self.thread = 1

    def wait(self, line: str, stream: int, on: int) -> None:
        """A stream waits for what another one was given so far."""

        def order() -> bool:
            self._call("cudaEventRecord", line)
            if on in self.last:
                self.waiting.setdefault(stream, []).append(self.last[on])
            self._call("cudaStreamWaitEvent", line, stream=stream)
            return True

        self._then(order)

    def named(self, name: str, fill: Callable[[], None]) -> None:
        """A range around what `fill` puts down."""
        began: list[int] = []

        def begin() -> bool:
            began.append(self.now_ns)
            return True

        def end() -> bool:
            self.ranges.append((name, began[0], self.now_ns))
            return True

        self._then(begin)
        fill()
        self._then(end)

    def sync(self, line: str, stream: int = COMPUTE) -> None:
        """The host waits for a stream."""

        def done() -> bool:
            last = self.last.get(stream)
            if last is not None and last.end_ns < 0:
                return False
            ends = 0 if last is None else last.end_ns
            ns = max(ends - self.now_ns, 0) + self._about(line, RETURN_NS)
            self._call("cudaStreamSynchronize", line, ns, stream=stream)
            return True

        self._then(done)

    def begin(self, step: int) -> None:
        def start() -> bool:
            self.step_ns.append(self.now_ns)
            return True

        self.step = step
        self._then(start)
        slow = self.conditions.slow_step
        if slow is not None and slow[0] == step and self.number == 0:
            self._then(lambda: self._pass("train.py:19", slow[1]))

    # how it goes

    def _then(self, what: Callable[[], bool]) -> None:
        step, thread = self.step, self.thread

        def at_its_time() -> bool:
            kept, self.step, self.thread = (self.step, self.thread), step, thread
            done = what()
            self.step, self.thread = kept
            return done

        self.to_do.append(at_its_time)

    def _planted(self, line: str, stream: int) -> None:
        found, where = self.conditions, (self.number, line)
        if where in found.host_ns:
            self.host(line, found.host_ns[where])
        count, ns = found.extra_kernels.get(where, (0, 0))
        for _ in range(count):
            self._then(lambda: self._launch(line, "extra_gemm", ns, stream, 512))
        if where in found.waits_at:
            self.sync(line, stream)

    def _pass(self, line: str, ns: int) -> bool:
        ns = self._about(line, ns * self.conditions.host_factor.get(self.number, 1.0))
        if self.cluster.samples:
            first = -(-self.now_ns // SAMPLE_NS) * SAMPLE_NS
            self.samples += [(at, line) for at in range(first, self.now_ns + ns, SAMPLE_NS)]
        self.now_ns += ns
        return True

    def _about(self, line: str, ns: float, spread: float | None = None) -> int:
        """With the jitter of this line, step and occurrence, which is the same in every run."""
        place = (self.number, self.step, line, self.thread)
        self.seen[place] += 1
        chance = random.Random(f"{place}{self.seen[place]}")
        spread = self.conditions.jitter if spread is None else spread
        return max(round(ns * chance.gauss(1.0, spread)), 1)

    def _call(self, api: str, line: str, ns: int = CALL_NS, **how: object) -> Call:
        call = Call(api, line, self.thread, self.now_ns, ns, **how)  # type: ignore[arg-type]
        self.calls.append(call)
        self.now_ns += ns
        return call

    def _launch(
        self,
        line: str,
        name: str,
        ns: float,
        stream: int,
        blocks: int,
        node: int | None = None,
        meeting: Meeting | None = None,
    ) -> bool:
        full = self.operations[-QUEUE] if len(self.operations) >= QUEUE else None
        if full is not None and full.start_ns < 0:
            return False
        factor = self.conditions.host_factor.get(self.number, 1.0)
        self.now_ns += self._about(line, self.cluster.dispatch_ns * factor, 10 * self.conditions.jitter)
        call_ns = self._about(line, CALL_NS * factor, 5 * self.conditions.jitter)
        if full is not None:
            call_ns = max(call_ns, full.start_ns - self.now_ns)
        made = Operation(
            name=name,
            step=self.step,
            ns=self._about(line, ns),
            stream=stream,
            blocks=blocks,
            reached_ns=self.now_ns + call_ns + self._about(line, LATENCY_NS - CALL_NS, 0.1),
            behind=self.waiting.pop(stream, []),
            meeting=meeting,
        )
        self._call("cudaLaunchKernel", line, call_ns, operation=made, node=node)
        self.operations.append(made)
        self.open.setdefault(stream, deque()).append(made)
        self.last[stream] = made
        return True


@dataclass
class Cluster:
    """Runs a program on some ranks: program(rank) puts down one step."""

    ranks: int
    program: Callable[[Rank], None]
    conditions: Conditions = field(default_factory=Conditions)
    dispatch_ns: int = DISPATCH_NS
    """of the host, on its way to each launch"""
    samples: bool = False
    clocks_ns: tuple[int, ...] = _CLOCKS_NS
    caller: str = "/app/train.py:30 main"
    """of the lines that are not in train.py"""
    step_name: str = "training_step"
    """of the ranges of steps; {} is the number of one"""

    def run(self, steps: int = 8) -> Cluster:
        self.steps = steps
        self.meetings: dict[object, Meeting] = {}
        self.all = [Rank(self, number) for number in range(self.ranks)]
        for rank in self.all:
            for step in range(steps):
                rank.begin(step)
                self.program(rank)
            rank.begin(steps)
        going = True
        while going:
            going = False
            for rank in self.all:
                while rank.to_do and rank.to_do[0]():
                    rank.to_do.popleft()
                    going = True
            going = self._settle() or going
        assert not any(rank.to_do for rank in self.all), "the program waits for itself"
        return self

    def _settle(self) -> bool:
        """Give times to the operations whose turn it is."""
        any_did, going = False, True
        while going:
            going = False
            for rank in self.all:
                for queue in rank.open.values():
                    while queue and self._ran(rank, queue[0]):
                        done = queue.popleft()
                        rank.free_ns[done.stream] = done.end_ns + PAUSE_NS
                        any_did = going = True
        return any_did

    def _ran(self, rank: Rank, one: Operation) -> bool:
        if any(other.end_ns < 0 for other in one.behind):
            return False
        if one.start_ns < 0:
            events = [other.end_ns + EVENT_NS for other in one.behind]
            one.start_ns = max([one.reached_ns, rank.free_ns.get(one.stream, 0), *events])
            if one.meeting is not None:
                one.meeting.come.append(one)
        if one.meeting is None:
            one.end_ns = one.start_ns + one.ns
        elif len(one.meeting.come) == one.meeting.members:
            last = max(other.start_ns for other in one.meeting.come)
            apart = random.Random(f"{last}{rank.number}").randrange(LEAVE_APART_NS)
            one.end_ns = last + one.meeting.ns + apart
        return one.end_ns >= 0

    @property
    def step_ns(self) -> float:
        """The mean step of all ranks, without the first, by what ended on the GPU."""
        each = []
        for rank in self.all:
            ends = [max(one.end_ns for one in rank.operations if one.step == s) for s in range(self.steps)]
            each.append((ends[-1] - ends[0]) / (self.steps - 1))
        return sum(each) / len(each)

    def write(self, folder: Path, until_ns: dict[int, int] | None = None) -> list[str]:
        """A recording per rank; until_ns: that of a rank ends there."""
        folder.mkdir(parents=True, exist_ok=True)
        return [self._write(rank, folder, (until_ns or {}).get(rank.number)) for rank in self.all]

    def _write(self, rank: Rank, folder: Path, until_ns: int | None) -> str:
        end_ns = 1 << 60 if until_ns is None else until_ns
        builder = TraceBuilder(pid=100 + rank.number)
        builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH_NS + self.clocks_ns[rank.number % 8])
        for name, value in (("rank", rank.number), ("world_size", self.ranks), ("samples_per_second", 1000)):
            builder.row("PYREC_META", name=name, value=str(value))
        for call in rank.calls:
            if call.start_ns + call.ns < end_ns:
                _record(builder, call, end_ns, self.caller)
        spans = zip(rank.step_ns, rank.step_ns[1:], strict=False)
        steps = [(self.step_name.format(number), *each) for number, each in enumerate(spans)]
        for name, start_ns, stop_ns in (*steps, *rank.ranges):
            if stop_ns < end_ns:
                builder.range(name, start_ns, stop_ns - 1)
        for at, line in rank.samples:
            builder.sample(at, _stack(line, self.caller))
        return str(builder.write(folder / f"run.rank{rank.number}.sqlite"))


def _record(builder: TraceBuilder, call: Call, end_ns: int, caller: str) -> None:
    builder.now_ns = call.start_ns
    forward = call.thread == 1
    how: dict[str, object] = {
        "thread": call.thread,
        "stack": _stack(call.line, caller) if forward else "",
    }
    one = call.operation
    if one is None:
        builder.call(call.api, call_ns=call.ns, **how)  # type: ignore[arg-type]
        if call.stream is not None:
            builder.row(
                "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
                start=call.start_ns, end=call.start_ns + call.ns, deviceId=0, contextId=1,
                streamId=call.stream, correlationId=builder._correlation, globalPid=VM | builder.pid << 24,
                syncType=3 if "Synchronize" in call.api else 2, eventId=-1,
            )  # fmt: skip
        return
    if call.node is not None:
        in_backward = {"peek": 0, "node": call.node, "node_name": "MmBackward0"}
        how |= {"peek": call.node + 1} if forward else in_backward
    if 0 <= one.end_ns < end_ns:
        how |= {"start_ns": one.start_ns, "stream": one.stream, "blocks": one.blocks, "call_ns": call.ns}
        if one.meeting is not None and one.meeting.message_bytes is not None:
            span_ns = (call.start_ns, call.start_ns + call.ns)
            noted_by_nccl(
                builder, call.thread, one.name, span_ns, one.meeting.members, one.meeting.message_bytes
            )
        builder.launch(one.name, one.end_ns - one.start_ns, **how)  # type: ignore[arg-type]


def _stack(line: str, caller: str) -> str:
    """Lines of the model are called by the program."""
    return f"/app/{line} main" if line.startswith("train.py") else f"{caller} > /app/{line} forward"
