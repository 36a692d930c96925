# SPDX-License-Identifier: Apache-2.0
"""Time single calls that have a result, as a program makes them: on the host, to the end, on the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallTime:
    """The times of one call, in nanoseconds."""

    host_ns: int
    """until the call returned: Python and the launches"""
    wall_ns: int
    """until the GPU had finished too"""
    gpu_span_ns: int | None
    """between CUDA events before and after the call; includes what the GPU idled in it. None on the CPU"""


def synchronizer(device: str) -> Callable[[], None]:
    """A function that waits until `device` has finished its work; on the CPU there is nothing to wait for."""
    if not device.startswith("cuda"):
        return lambda: None
    import torch

    return lambda: torch.cuda.synchronize(device)


def time_call(call: Callable[[], T], *, device: str = "cuda") -> tuple[T, CallTime]:
    """Call once, and return the result with its times. Waits for the GPU before and after the call.

    Exceptions of the call are passed on.
    """
    if not device.startswith("cuda"):
        start_ns = time.perf_counter_ns()
        result = call()
        wall_ns = time.perf_counter_ns() - start_ns
        return result, CallTime(wall_ns, wall_ns, None)
    import torch

    stream = torch.cuda.current_stream(device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start_ns = time.perf_counter_ns()
    begin.record(stream)
    result = call()
    host_ns = time.perf_counter_ns() - start_ns
    end.record(stream)
    torch.cuda.synchronize(device)
    wall_ns = time.perf_counter_ns() - start_ns
    return result, CallTime(host_ns, wall_ns, event_ns(begin, end))


def event_ns(begin: Any, end: Any) -> int:
    """Nanoseconds on the GPU between two CUDA events that have been reached."""
    return round(float(begin.elapsed_time(end)) * 1e6)
