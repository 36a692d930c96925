# SPDX-License-Identifier: Apache-2.0
"""Made XPlane files: a program of JAX on a GPU, written with the field numbers of xplane.proto and hlo.proto.

The bytes are made here, not with the messages of the reader: both would have the same mistakes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TRAIN = "/home/me/train.py"
MODULE, PROGRAM = "jit_step", 17


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field_of(number: int, value: int | str | bytes) -> bytes:
    """A field; as in proto3 one that has its default value is left out."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value) if value else b""
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


@dataclass
class PlaneBuilder:
    """A plane: events by line, and the names of events and stats, which are stored once."""

    name: str
    stats: dict[str, Any] = field(default_factory=dict)
    lines: dict[tuple[int, str], list[bytes]] = field(default_factory=dict)
    line_start_ns: int = 5_000
    _events: dict[str, int] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)

    def _id(self, names: dict[str, int], name: str) -> int:
        return names.setdefault(name, len(names) + 1)

    def _stat(self, name: str, value: int | str | bytes) -> bytes:
        out = field_of(1, self._id(self._names, name))
        if isinstance(value, bytes):
            return out + field_of(6, value)
        # Texts are stored once, among the names of stats.
        return out + (
            field_of(7, self._id(self._names, value)) if isinstance(value, str) else field_of(4, value)
        )

    def event(self, line: tuple[int, str], name: str, start_ns: int, end_ns: int, **stats: Any) -> None:
        """At times of the file; an event stores picoseconds since the start of its line."""
        out = field_of(1, self._id(self._events, name)) + field_of(2, (start_ns - self.line_start_ns) * 1000)
        out += field_of(3, (end_ns - start_ns) * 1000)
        for stat, value in stats.items():
            out += field_of(4, self._stat(stat, value))
        self.lines.setdefault(line, []).append(out)

    def encoded(self, programs: dict[str, bytes] | None = None) -> bytes:
        out = field_of(2, self.name)
        for (number, name), events in self.lines.items():
            line = field_of(1, number) + field_of(2, name) + field_of(3, self.line_start_ns)
            out += field_of(3, line + b"".join(field_of(4, event) for event in events))
        stats = b"".join(field_of(6, self._stat(name, value)) for name, value in self.stats.items())
        for name, number in self._events.items():
            known = field_of(1, number) + field_of(2, name)
            out += field_of(4, field_of(1, number) + field_of(2, known))
        for i, (name, hlo) in enumerate((programs or {}).items(), 1):
            known = field_of(1, i) + field_of(2, name) + field_of(5, self._stat("Hlo Proto", hlo))
            out += field_of(4, field_of(1, i) + field_of(2, known))
        for name, number in self._names.items():
            known = field_of(1, number) + field_of(2, name)
            out += field_of(5, field_of(1, number) + field_of(2, known))
        return out + stats


def hlo() -> bytes:
    """A program with four instructions: a product, the same in backward, a fusion that has its root's frames,
    and one without any.
    """
    texts = [TRAIN, "/usr/lib/python3.12/site-packages/jax/_src/nn/functions.py"]
    frames = b"".join(field_of(1, file) for file in texts)
    frames += b"".join(field_of(2, function) for function in ("step", "layer", "gelu"))
    places = [(1, 1, 15), (1, 2, 5), (1, 2, 6), (2, 3, 400)]  # file, function, line
    for file, function, line in places:
        frames += field_of(3, field_of(1, file) + field_of(2, function) + field_of(3, line))
    parents = [(1, 0), (2, 1), (3, 1), (4, 3)]  # place, frame of the caller
    for place, parent in parents:
        frames += field_of(4, field_of(1, place) + field_of(2, parent))

    def instruction(number: int, name: str, op_name: str, frame: int, called: int = 0) -> bytes:
        metadata = field_of(2, op_name) + field_of(15, frame)
        calls = field_of(38, called)
        return field_of(1, name) + field_of(7, metadata) + field_of(35, number) + calls

    entry = [
        instruction(1, "dot.1", "jit(step)/jvp()/dot_general", 2),
        instruction(2, "dot.2", "jit(step)/transpose(jvp())/dot_general", 2),
        instruction(3, "gelu_fusion", "", 0, called=9),
        instruction(4, "copy.4", "", 0),
    ]
    fused = [instruction(7, "add.7", "x", 1), instruction(8, "tanh.8", "jit(step)/jvp()/gelu/tanh", 4)]
    module = field_of(1, MODULE)
    module += field_of(3, b"".join(field_of(2, one) for one in entry) + field_of(5, 3) + field_of(6, 4))
    module += field_of(3, b"".join(field_of(2, one) for one in fused) + field_of(5, 9) + field_of(6, 8))
    return field_of(1, module + field_of(5, PROGRAM) + field_of(17, frames))


CUDA = {
    "launch": "cuLaunchKernelEx",
    "copy": "cuMemcpyHtoDAsync_v2",
    "wait": "cuStreamSynchronize",
    "vendor": "Nvidia",
    "kernel": "gemm_fusion_dot",
    "details": "regs:40 static_shared:1024 dynamic_shared:512 grid:64,2,1 block:128,1,1 occ_pct:50",
}
ROCM = CUDA | {
    "launch": "hipModuleLaunchKernel",
    "copy": "hipMemcpyHtoDAsync",
    "wait": "hipStreamSynchronize",
    "vendor": "AMD",
    "kernel": "Cijk_Ailk_Bljk_SB_MT128x64.kd",
    "details": "grid:64,2,1 block:128,1,1 private_mem:0 group_mem:1536 occ_pct:0",
}


def training(words: dict[str, str] = CUDA, steps: int = 4) -> list[bytes]:
    """The planes of a program with annotated steps, as jax.profiler records it."""
    properties = {"device_vendor": words["vendor"], "core_count": 132, "memory_size": 80 << 30}
    properties |= {"memory_bandwidth": 3_350 * 10**9, "compute_cap_major": 9}
    gpu = PlaneBuilder("/device:GPU:0", properties)
    host = PlaneBuilder("/host:CPU", {"process_id": 4321})
    stream, copies = (13, "Stream #13(Compute)"), (14, "Stream #14(MemcpyH2D)")
    python, xla = (-7_000_000_000_000_000_001, "python"), (4322, "py_xla_execute/4322")
    correlation = 0
    for step in range(steps):
        t = 10_000 + 1_000_000 * step
        host.event(python, "train", t, t + 900_000, step_num=step, _r=1)
        host.event(python, "$train.py:14 step", t + 500, t + 800_000)
        correlation += 1
        host.event(xla, words["copy"], t + 1_000, t + 6_000, correlation_id=correlation)
        details = "kind_src:pageable kind_dst:device size:4096 dest:0 async:1"
        gpu.event(
            copies,
            "MemcpyH2D",
            t + 8_000,
            t + 9_000 + step,
            correlation_id=correlation,
            memcpy_details=details,
        )
        for i, operation in enumerate(("dot.1", "gelu_fusion", "dot.2", "copy.4")):
            at = t + 20_000 + 50_000 * i
            correlation += 1
            known = {"correlation_id": correlation, "hlo_op": operation, "program_id": PROGRAM}
            host.event(xla, words["launch"], at, at + 4_000, **known, hlo_module=MODULE)
            name = words["kernel"] if operation.startswith("dot") else f"{operation.replace('.', '_')}"
            gpu.event(
                stream, name, at + 8_000, at + 40_000 + 3 * step, **known, kernel_details=words["details"]
            )
        host.event(xla, words["wait"], t + 600_000, t + 700_000, correlation_id=correlation + 1)
        correlation += 1
        allocator = {
            "allocator_name": "GPU_0_bfc",
            "bytes_allocated": (step + 1) << 20,
            "allocation_bytes": 1 << 20,
        }
        host.event(xla, "MemoryAllocation", t + 700, t + 700, **allocator)
    # A summary that tools add to the plane; its time is that of the kernels.
    gpu.event((99, "XLA Ops"), "dot.1", 20_000, 60_000, hlo_op="dot.1")
    metadata = PlaneBuilder("/host:metadata", {"jax_version": "0.10.2", "jaxlib_version": "0.10.2"})
    task = PlaneBuilder("Task Environment")
    task.stats = {
        "profile_start_time": 1_700_000_000_000_000_000,
        "profile_stop_time": 1_700_000_000_100_000_000,
    }
    programs = {f"{MODULE}({PROGRAM})": hlo()}
    return [metadata.encoded(programs), gpu.encoded(), host.encoded(), task.encoded()]


def write_space(path: Path, planes: list[bytes]) -> Path:
    path.write_bytes(b"".join(field_of(1, plane) for plane in planes))
    return path
