# SPDX-License-Identifier: Apache-2.0
"""The properties of an XPlane file, and how to record what is missing."""

from __future__ import annotations

from profiling_lab.trace.columns import OperationKind
from profiling_lab.trace.extras import Device
from profiling_lab.trace.facts import OUR_METHOD, Gpu, Recorded, TraceInfo, utc, whole_number
from profiling_lab.trace.platform import ROCM_METHOD, is_rocm
from profiling_lab.trace.source import Tables
from profiling_lab.trace.xplane.space import GPU, Plane, Space, text_of
from profiling_lab.trace.xplane.tables import PYTHON, SpaceTables

_STEPS = "jax.profiler.StepTraceAnnotation('train', step_num=i) around each step"
_STACKS = "the HLO of the programs: ProfileOptions.enable_hlo_proto, on by default"
_GPU = "a profile of a program that runs on a GPU"


def started_ns(space: Space) -> int | None:
    """Nanoseconds since 1970, None if unknown."""
    started = whole_number(space.facts.get("profile_start_time"), 0)
    return started if started > 0 else None


def xplane_info(space: Space, tables: SpaceTables, whole: Tables) -> TraceInfo:
    kinds, ranges = whole.operations.kind, whole.ranges
    started, stopped = started_ns(space), whole_number(space.facts.get("profile_stop_time"), 0)
    versions = [f"{name} {text_of(space.facts, f'{name}_version')}" for name in ("jax", "jaxlib")]
    versions = [version for version in versions if not version.endswith(" ")]
    memory = tables.memory()
    python = int((ranges.domain == PYTHON).sum())
    return TraceInfo(
        path=str(whole.path),
        file_bytes=space.file_bytes,
        product="XLA's profiler" + (f" ({', '.join(versions)})" if versions else ""),
        schema="XPlane",
        started_utc=utc(started) if started else "",
        duration_ns=stopped - started if started and stopped > started else None,
        gpus=gpus(space),
        driver="",
        processes=(f"pid {tables.pid}",) if tables.pid else (),
        recorded=(
            Recorded("kernels", "kernels", int((kinds == OperationKind.KERNEL).sum()), _GPU),
            Recorded("copies", "copies", int((kinds == OperationKind.COPY).sum()), ""),
            Recorded("sets", "memsets", int((kinds == OperationKind.SET).sum()), ""),
            Recorded("calls", "API calls", len(whole.calls), _GPU),
            Recorded("python_stacks", "API calls with a Python stack", whole.stacks_found.recorded, _STACKS),
            Recorded("steps", "steps", tables.steps, _STEPS),
            Recorded("ranges", "annotations and events of XLA", len(ranges) - python, ""),
            Recorded("python", "calls of Python functions", python, "ProfileOptions.python_tracer_level = 1"),
            Recorded("memory", "GPU memory allocations", 0 if memory is None else len(memory.time_ns), _GPU),
        ),
        recorder=(),
        options=(),
        method=ROCM_METHOD if is_rocm(whole) else OUR_METHOD,
        ranks=(),
        events=None,
        overhead_ns=None,
        warnings=(),
    )


def gpus(space: Space) -> tuple[Gpu, ...]:
    """The GPUs that have properties; a profile lists those without work by name alone."""
    return tuple(gpu_of(plane) for plane in space.named(GPU) if "core_count" in plane.stats)


def gpu_of(plane: Plane) -> Gpu:
    number = {name: whole_number(plane.stats.get(name), 0) for name in plane.stats}
    vendor = text_of(plane.stats, "device_vendor")
    name = text_of(plane.stats, "device_type_string") or f"{vendor} GPU".strip()
    major, minor = number.get("compute_cap_major", 0), number.get("compute_cap_minor", 0)
    # Of an AMD GPU these numbers are parts of its architecture's name, gfx942.
    compute = f"{major}.{minor}" if major and vendor != "AMD" else ""
    return Gpu(name, compute, number.get("core_count", 0), number.get("memory_size", 0))


def devices(space: Space) -> dict[int, Device]:
    out = {}
    for plane in space.named(GPU):
        gpu, stats = gpu_of(plane), plane.stats
        is_nvidia = bool(gpu.compute)
        bandwidth = whole_number(stats.get("memory_bandwidth"), 0) if is_nvidia else 0
        out[plane.ordinal] = Device(
            name=gpu.name,
            compute=whole_number(stats.get("compute_cap_major"), 0) if is_nvidia else None,
            sm_count=gpu.multiprocessors or None,
            memory_bytes_per_s=bandwidth or None,
            warps_per_sm=None,
            blocks_per_sm=None,
            registers_per_sm=None,
            shared_bytes_per_sm=None,
        )
    return out
