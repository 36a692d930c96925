# SPDX-License-Identifier: Apache-2.0
"""A machine that runs made programs and records them: a host thread, streams, a copy engine, a launch queue.

It knows how long the steps really take, so a program that runs mended says what a defect costs. It shares
nothing with the analysis.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from builders import VM, TraceBuilder

CALL_NS, LATENCY_NS, PAUSE_NS, RETURN_NS = 3_000, 5_000, 1_000, 4_000
QUEUE = 1_024
SAMPLE_NS = 5_000_000
PINNED, PAGEABLE, DEVICE_MEMORY = 1, 0, 2
FILE = "/app/train.py"


@dataclass
class Rig:
    dispatch_ns: int = 6_000
    """the host's way to each launch"""
    builder: TraceBuilder = field(default_factory=TraceBuilder)
    now_ns: int = 1_000_000
    free_ns: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    engine_ns: int = 0
    steps_ns: list[int] = field(default_factory=list)
    tape: list[tuple[str, int, int, int]] | None = None
    """what backward has to run: name, line, time and autograd node of kernels; None: nothing is trained"""
    _nodes: int = 0
    _begins: dict[int, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    _wanted: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _sampled_ns: int = 0

    def _call(self, api: str, line: int, took_ns: int, correlation: int | None = None, **how: object) -> int:
        if correlation is None:
            self.builder._correlation += 1
            correlation = self.builder._correlation
        self.builder.now_ns = self.now_ns
        stack = "" if how.get("thread", 1) != 1 else f"{FILE}:{line} f{line // 10}"
        self.builder.call(api, stack=stack, call_ns=took_ns, correlation=correlation, **how)  # type: ignore[arg-type]
        self.now_ns += took_ns
        return correlation

    def host(self, line: int, ns: int, loading: bool = False, via: int = 0) -> None:
        """Code of the host, sampled; `via`: the line that called it."""
        until = self.now_ns + ns
        at = max(self._sampled_ns + SAMPLE_NS, self.now_ns)
        inside = (
            " > /usr/lib/python3/site-packages/torch/utils/data/dataloader.py:9 __next__" if loading else ""
        )
        caller = f"{FILE}:{via} f{via // 10} > " if via else ""
        while at < until:
            self.builder.sample(at, f"{caller}{FILE}:{line} f{line // 10}{inside}")
            self._sampled_ns, at = at, at + SAMPLE_NS
        self.now_ns = until

    def pause(self, what: str, line: int, ns: int) -> None:
        """A pause that Python or torch told of."""
        self.builder.host_event(what, self.now_ns, self.now_ns + ns, f"{FILE}:{line} f{line // 10}")
        self.now_ns += ns

    def _queue(self, stream: int, start_ns: int) -> int:
        """How long the launch waits for room."""
        begins = self._begins[stream]
        while begins and begins[0] <= self.now_ns:
            begins.popleft()
        full_ns = max(begins[len(begins) - QUEUE] - self.now_ns, 0) if len(begins) >= QUEUE else 0
        begins.append(start_ns)
        return full_ns

    def kernel(self, name: str, line: int, ns: int, stream: int = 7, **how: object) -> None:
        self.now_ns += self.dispatch_ns
        if self.tape is not None and "node" not in how:
            self.tape.append((name, line, ns, self._nodes))
            self._nodes += 1
            how["peek"] = self._nodes
        start_ns = self._start(stream)
        number = self._call("cudaLaunchKernel_v7000", line, CALL_NS + self._queue(stream, start_ns), **how)
        start_ns = max(start_ns, self.now_ns)
        self._operation("KERNEL", start_ns, ns, stream, number, name=name)

    def copy(
        self, kind: str, line: int, size_bytes: int, rate: float, memory: int = PINNED, stream: int = 7
    ) -> None:
        """rate: bytes per ns. A copy of pageable memory blocks the host until it is done."""
        self.now_ns += self.dispatch_ns
        ns = max(round(size_bytes / rate), 1_500)
        start_ns = self._start(stream)
        if kind == "HtoD":
            start_ns = max(start_ns, self.engine_ns)
        held_ns = (
            start_ns + ns - self.now_ns if memory == PAGEABLE else CALL_NS + self._queue(stream, start_ns)
        )
        number = self._call("cudaMemcpyAsync_v3020", line, held_ns)
        if kind == "HtoD":
            self.engine_ns = start_ns + ns
        sides = (memory, DEVICE_MEMORY) if kind == "HtoD" else (DEVICE_MEMORY, memory)
        details = {"copyKind": {"HtoD": 1, "DtoH": 2, "DtoD": 8}[kind], "bytes": size_bytes}
        if kind == "DtoD":
            sides = (DEVICE_MEMORY, DEVICE_MEMORY)
        details |= {"srcKind": sides[0], "dstKind": sides[1]}
        self._operation("MEMCPY", start_ns, ns, stream, number, details=details)

    def _start(self, stream: int) -> int:
        after = self.free_ns[stream] + PAUSE_NS
        return max(self.now_ns + LATENCY_NS, after, self._wanted.pop(stream, 0))

    def _operation(
        self,
        table: str,
        start_ns: int,
        ns: int,
        stream: int,
        number: int,
        name: str = "",
        details: object = None,
    ) -> None:
        self.free_ns[stream] = start_ns + ns
        more = dict(details or {})  # type: ignore[call-overload]
        if name:
            more = {
                "demangledName": self.builder.string(name),
                "shortName": self.builder.string(name.split("<")[0]),
            }
        self.builder.row(
            f"CUPTI_ACTIVITY_KIND_{table}",
            start=start_ns,
            end=start_ns + ns,
            deviceId=0,
            contextId=1,
            streamId=stream,
            correlationId=number,
            globalPid=VM | self.builder.pid << 24,
            **more,
        )

    def sync(self, line: int, api: str = "cudaStreamSynchronize_v3020", stream: int = 7) -> None:
        """The host waits until a stream has done all."""
        start_ns = self.now_ns
        number = self._call(api, line, max(self.free_ns[stream] - start_ns, 0) + RETURN_NS)
        self._synchronization(start_ns, 3, stream, number)

    def backward(self) -> None:
        """Twice what forward did, on autograd's thread, and nothing is trained from here on."""
        tape, self.tape = self.tape or [], None
        for name, line, ns, node in reversed(tape):
            for _ in range(2):
                self.kernel(name, line, ns, thread=2, node=node, node_name="Backward0")

    def item(self, line: int) -> None:
        """A value is read: a copy of a few bytes, and a wait for it."""
        tape, self.tape = self.tape, None
        self.kernel("reduce_kernel<512, 1>", line, 3_000)
        self.copy("DtoH", line, 4, 10.0)
        self.sync(line)
        self.tape = tape

    def allocate(self, line: int, ns: int) -> None:
        """Memory is freed, which waits for the GPU, and allocated."""
        self.now_ns += self.dispatch_ns
        self._call("cudaFree_v3020", line, max(max(self.free_ns.values()) - self.now_ns, 0) + ns)
        self._call("cudaMalloc_v3020", line, ns)

    def wait_event(self, line: int, stream: int, on: int) -> None:
        start_ns = self.now_ns
        number = self._call("cudaStreamWaitEvent_v3020", line, 1_000)
        self._synchronization(start_ns, 2, stream, number)
        self._wanted[stream] = max(self._wanted[stream], self.free_ns[on] + PAUSE_NS)

    def _synchronization(self, start_ns: int, kind: int, stream: int, number: int) -> None:
        self.builder.row(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            start=start_ns,
            end=self.now_ns,
            deviceId=0,
            contextId=1,
            streamId=stream,
            correlationId=number,
            globalPid=VM | self.builder.pid << 24,
            syncType=kind,
            eventId=-1,
        )

    def step(self, number: int, begin_ns: int) -> None:
        """Mark a step that began at `begin_ns`."""
        self.builder.range(f"training_step {number}", begin_ns, self.now_ns)
        self.steps_ns.append(max(self.now_ns, *self.free_ns.values()))

    def step_ns(self, warm: int) -> float:
        """The mean of the steps behind the first ones, as a program measures it that waits at both ends."""
        return (self.steps_ns[-1] - self.steps_ns[warm - 1]) / (len(self.steps_ns) - warm)
