# SPDX-License-Identifier: Apache-2.0
"""Recordings with a history of the allocator: a TraceBuilder and a FakeAllocator on one clock."""

from __future__ import annotations

import json
from typing import Any

from builders import VM, TraceBuilder, parse_stack
from memory_model.fake_allocator import FakeAllocator

from profiling_lab.trace.memory_history import ACTIONS

MIB = 1 << 20


class MemoryRecording:
    """A program in which GPU work and allocations alternate.

    Stacks are those of the builder, outermost first: "/app/train.py:8 main > /app/model.py:5 forward".
    """

    def __init__(self, total: int = 80 << 30, capacity: int = 1 << 40, **how: Any) -> None:
        self.builder = TraceBuilder()
        self.allocator = FakeAllocator(capacity, clock=self._microseconds, **how)
        self.total = total
        self._sets: dict[tuple[tuple[int, int], ...], int] = {}

    def _microseconds(self) -> int:
        self.builder.gap(2_000)
        return self.builder.now_ns // 1000

    def malloc(self, size: int, stack: str = "") -> int:
        return self.allocator.malloc(size, [{"builder": stack}] if stack else [])

    def free(self, *addresses: int) -> None:
        for address in addresses:
            self.allocator.free(address)

    def launch(self, kernel: str = "gemm", gpu_ns: int = 1000, **how: Any) -> None:
        self.builder.launch(kernel, gpu_ns, **how)

    def seen(self, **kinds: list[int]) -> None:
        """What the recorder notes after an optimizer step: addresses by kind (parameter, gradient, state)."""
        names = ("parameter", "gradient", "state", "buffer")
        tensors = tuple((address, names.index(kind)) for kind, listed in kinds.items() for address in listed)
        number = self._sets.setdefault(tensors, len(self._sets))
        self.builder.gap(3_000)
        self.builder.row("PYREC_MEMORY_SAMPLE", start=self.builder.now_ns, globalPid=self._pid, setId=number)
        self.builder.gap(3_000)

    @property
    def _pid(self) -> int:
        return VM | self.builder.pid << 24

    def finish(self, most_events: int = 0, counts: bool = True) -> TraceBuilder:
        """The builder with the rows of all that the allocator did."""
        where = {"globalPid": self._pid, "deviceId": 0}
        snapshot = self.allocator.snapshot()
        for event in snapshot["device_traces"][0]:
            stack = event["frames"][0]["builder"] if event["frames"] else ""
            self.builder.row(
                "PYREC_MEMORY_EVENT", start=event["time_us"] * 1000, action=int(ACTIONS[event["action"]]),
                address=event.get("addr", event.get("device_free")), bytes=event["size"],
                stackId=self.builder._stack_id(parse_stack(stack)), **where,
            )  # fmt: skip
        for segment in snapshot["segments"]:
            self.builder.row("PYREC_MEMORY_SEGMENT", address=segment["address"], bytes=segment["total_size"],
                             isExpandable=int(segment["is_expandable"]), **where)  # fmt: skip
            for block in segment["blocks"]:
                if block["state"] != "inactive":
                    self.builder.row(
                        "PYREC_MEMORY_BLOCK", address=block["address"], bytes=block["size"],
                        requestedBytes=block["requested_size"],
                        isAllocated=int(block["state"] == "active_allocated"), **where,
                    )  # fmt: skip
        allocator = self.allocator
        known = {"allocatedPeak": allocator.peak, "reservedPeak": allocator.reserved_peak,
                 "allocated": allocator.allocated, "reserved": allocator.reserved}  # fmt: skip
        self.builder.row("PYREC_MEMORY_DEVICE", mostEvents=most_events, totalMemory=self.total,
                         settings=json.dumps(snapshot["allocator_settings"]), **where,
                         **(known if counts else {}))  # fmt: skip
        for tensors, number in self._sets.items():
            for address, kind in tensors:
                self.builder.row("PYREC_MEMORY_TENSOR", globalPid=self._pid, setId=number, address=address,
                                 kind=kind)  # fmt: skip
        return self.builder


def training(recording: MemoryRecording, steps: int, *, keep: int = 0, zero: bool = False) -> None:
    """Steps of forward, backward and optimizer. keep: bytes that a list gets in each; zero: gradients stay.

    Line 20 makes the weights, 30 activations, 31 something temporary, 40 what is kept; 50 is the optimizer.
    """
    main = "/app/train.py:9 main"
    weights = recording.malloc(8 * MIB, f"{main} > /app/model.py:20 build")
    state = gradient = 0
    optimizer = (
        f"{main} > /app/train.py:50 step > /usr/lib/python3.11/site-packages/torch/optim/adamw.py:200 step"
    )
    for step in range(steps):
        recording.builder.gap(20_000)
        activation = recording.malloc(30 * MIB, f"{main} > /app/model.py:30 forward")
        recording.launch("gemm", stack=f"{main} > /app/model.py:30 forward", peek=2 * step + 1)
        temporary = recording.malloc(20 * MIB, f"{main} > /app/model.py:31 forward")
        recording.launch("gelu", stack=f"{main} > /app/model.py:31 forward", peek=2 * step + 2)
        recording.free(temporary)
        if keep:
            recording.malloc(keep, f"{main} > /app/train.py:40 log")
        if not gradient:
            gradient = recording.malloc(8 * MIB)
        recording.launch("gelu_bwd", node=2 * step + 1, node_name="GeluBackward0", thread=2)
        recording.free(activation)
        recording.launch("gemm_bwd", node=2 * step, node_name="MmBackward0", thread=2)
        if not state:
            state = recording.malloc(16 * MIB, f"{optimizer.replace('200 step', '90 _init_group')}")
        recording.launch("adamw", stack=optimizer)
        recording.seen(parameter=[weights], gradient=[gradient], state=[state])
        if not zero:
            recording.free(gradient)
            gradient = 0
    recording.builder.gap(20_000)
    recording.free(recording.malloc(512, main))
    recording.launch("last", stack=main)
