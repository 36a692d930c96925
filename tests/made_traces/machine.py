# SPDX-License-Identifier: Apache-2.0
"""Made programs on a made machine: host threads, streams, events. Made again with a line that takes another
time, they tell what really would have happened: the truth for what-if.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builders import VM, TraceBuilder

from profiling_lab.analysis.critical_path.critical_path import PathOfStep
from profiling_lab.trace import Trace

CALL_NS, LATENCY_NS, PAUSE_NS, RETURN_NS = 3_000, 5_000, 1_000, 4_000
STEPS = 7


@dataclass
class Recording:
    """What it takes: of the calls in turn, of launches by CUPTI, and behind each call."""

    own_ns: tuple[int, ...]
    cupti_ns: int
    exit_ns: int = 0
    each_noted: bool = True
    """what each call took, not only the mean"""
    noted: bool = True

    @property
    def callback_ns(self) -> int:
        """The mean."""
        return sum(self.own_ns) // len(self.own_ns) + self.exit_ns


@dataclass
class Machine:
    """Every line's time is multiplied with its factor."""

    factors: Mapping[int, float] = field(default_factory=dict)
    recording: Recording | None = None
    builder: TraceBuilder = field(default_factory=TraceBuilder)
    now_ns: dict[int, int] = field(default_factory=lambda: {1: 1_000_000})
    free_ns: dict[int, int] = field(default_factory=dict)
    ran_ns: dict[int, tuple[int, int]] = field(default_factory=dict)
    """per stream the begin of its last kernel, and its time without waiting for the one before"""
    wanted_ns: dict[int, int] = field(default_factory=dict)
    begin_ns: int = 0
    calls: int = 0

    def __post_init__(self) -> None:
        if self.recording and self.recording.noted:
            facts = {"overhead_callback_ns": self.recording.callback_ns}
            if self.recording.each_noted:
                facts["overhead_exit_ns"] = self.recording.exit_ns
            for name, value in facts.items():
                self.builder.row("PYREC_META", name=name, value=str(value))

    def _recorded(self, launches: bool) -> int:
        """What recording takes of the next call."""
        if not self.recording:
            return 0
        own = self.recording.own_ns
        return own[self.calls % len(own)] + self.recording.cupti_ns * launches

    def took(self, line: int, ns: int) -> int:
        return round(ns * self.factors.get(line, 1.0))

    def _call(self, api: str, line: int, took_ns: int, thread: int, **how: object) -> None:
        self.builder.now_ns = self.now_ns[thread]
        stack = f"/app/train.py:{line} main" if thread == 1 else ""
        if self.recording and self.recording.each_noted:
            how["own_ns"] = self._recorded(False)
        took_ns += self._recorded(api == "cudaLaunchKernel")
        self.builder.call(api, stack=stack, thread=thread, call_ns=took_ns, **how)  # type: ignore[arg-type]
        self.now_ns[thread] += took_ns + (self.recording.exit_ns if self.recording else 0)
        self.calls += 1

    def host(self, line: int, ns: int, thread: int = 1) -> None:
        """Code of the host, on its way to a call of the same line."""
        self.now_ns[thread] += self.took(line, ns)

    def kernel(
        self, line: int, ns: int, stream: int = 7, thread: int = 1, early: float = 0.0, **how: object
    ) -> None:
        """early: the part of the time of the kernel before it during which it may run already."""
        free_ns = self.free_ns.get(stream, 0) + self.took(line, PAUSE_NS)
        if early and stream in self.ran_ns:
            began_ns, ran_ns = self.ran_ns[stream]
            free_ns = began_ns + round((1 - early) * ran_ns)
        start_ns = max(
            self.now_ns[thread] + self._recorded(True) + self.took(line, LATENCY_NS),
            free_ns,
            self.wanted_ns.pop(stream, 0),
        )
        self.ran_ns[stream] = start_ns, self.took(line, ns)
        took_ns = max(self.took(line, ns), self.free_ns.get(stream, 0) - start_ns)
        self.builder._correlation += 1
        number = self.builder._correlation
        self._call("cudaLaunchKernel", line, self.took(line, CALL_NS), thread, correlation=number, **how)
        self.free_ns[stream] = start_ns + took_ns
        name = self.builder.string(f"kernel_{line}")
        self.builder.row(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=start_ns,
            end=start_ns + took_ns,
            deviceId=0,
            contextId=1,
            streamId=stream,
            correlationId=number,
            globalPid=VM | self.builder.pid << 24,
            demangledName=name,
            shortName=name,
        )

    def _synchronization(self, start_ns: int, kind: int, stream: int) -> None:
        self.builder.row(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            start=start_ns,
            end=self.builder.now_ns,
            deviceId=0,
            contextId=1,
            streamId=stream,
            correlationId=self.builder._correlation,
            globalPid=VM | self.builder.pid << 24,
            syncType=kind,
            eventId=-1,
        )

    def sync(self, line: int, stream: int = 7) -> None:
        """The host waits for a stream; a line that is gone waits for nothing."""
        start_ns = self.now_ns[1]
        if self.factors.get(line) == 0:
            return
        waits_ns = self.free_ns.get(stream, 0) - start_ns - self._recorded(False)
        took_ns = max(waits_ns, 0) + self.took(line, RETURN_NS)
        self._call("cudaStreamSynchronize", line, took_ns, 1)
        self._synchronization(start_ns, 3, stream)

    def wait_event(self, line: int, stream: int, on: int) -> None:
        """A stream waits for what was launched on another one."""
        start_ns = self.now_ns[1]
        if self.factors.get(line) == 0:
            return
        self._call("cudaStreamWaitEvent", line, self.took(line, 1_000), 1)
        self._synchronization(start_ns, 2, stream)
        after = self.free_ns.get(on, 0) + PAUSE_NS
        self.wanted_ns[stream] = max(self.wanted_ns.get(stream, 0), after)

    def step(self, begin: bool) -> None:
        """Mark the begin or the end of a step."""
        if begin:
            self.begin_ns = self.now_ns[1]
        else:
            self.builder.range("training_step", self.begin_ns, self.now_ns[1])

    def write(self, path: Path) -> Trace:
        return Trace.open(self.builder.write(path))


Program = Callable[[Machine], None]


def written(
    program: Program,
    path: Path,
    factors: Mapping[int, float] | None = None,
    recording: Recording | None = None,
) -> Trace:
    """The recording of a program of STEPS steps."""
    machine = Machine(factors or {}, recording)
    for _ in range(STEPS):
        machine.step(True)
        program(machine)
        machine.step(False)
    return machine.write(path)


def made(
    program: Program,
    path: Path,
    factors: Mapping[int, float] | None = None,
    recording: Recording | None = None,
) -> PathOfStep:
    """The path of a step of it."""
    return PathOfStep(written(program, path, factors, recording))
