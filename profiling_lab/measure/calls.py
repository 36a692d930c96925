# SPDX-License-Identifier: Apache-2.0
"""Time single calls that have a result, as a program makes them: on the host, to the end, on the GPU.

PyTorch's work on a GPU is waited for by its device. JAX computes asynchronously on every device, the CPU too,
and has no such wait: its work is waited for by the arrays in the results.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

_CALLS_IN_FLIGHT = 32
"""so many calls of one computation JAX itself lets run ahead, with their results in memory"""


@dataclass(frozen=True, slots=True)
class CallTime:
    """The times of one call, in nanoseconds."""

    host_ns: int
    """until the call returned: Python and the launches"""
    wall_ns: int
    """until the GPU had finished too, and the JAX arrays in the result were computed"""
    gpu_span_ns: int | None
    """between CUDA events before and after the call; includes what the GPU idled in it. None on the CPU"""


def synchronizer(device: str) -> Callable[[], None]:
    """A function that waits until `device` has finished its work; on the CPU there is nothing to wait for."""
    if not device.startswith("cuda"):
        return lambda: None
    import torch

    return lambda: torch.cuda.synchronize(device)


def jax_arrays(result: object) -> list[Any]:
    """The JAX arrays in a result, which may be nested; those that were donated to a later call are not among
    them. JAX is asked only if the program has loaded it.
    """
    jax = sys.modules.get("jax")
    if not hasattr(jax, "Array"):  # not loaded, not yet complete, or another module of this name
        return []
    assert jax is not None
    leaves = jax.tree.leaves(result)
    return [leaf for leaf in leaves if isinstance(leaf, jax.Array) and not leaf.is_deleted()]


def wait_for(result: object) -> None:
    """Wait until the JAX arrays in a result are computed, wherever they are."""
    if arrays := jax_arrays(result):
        sys.modules["jax"].block_until_ready(arrays)


class InFlight:
    """The JAX arrays of calls that follow each other without a wait. No other result is kept."""

    def __init__(self) -> None:
        self._arrays: deque[list[Any]] = deque()

    def add(self, result: object) -> None:
        if arrays := jax_arrays(result):
            self._arrays.append(arrays)
            if len(self._arrays) > _CALLS_IN_FLIGHT:
                wait_for(self._arrays.popleft())

    def wait(self) -> None:
        """Wait for all of them: those of the last call may be computed before those of an earlier one."""
        wait_for(list(self._arrays))
        self._arrays.clear()


def time_call(call: Callable[[], T], *, device: str = "cuda") -> tuple[T, CallTime]:
    """Call once, and return the result with its times. Waits for the GPU before and after the call, and for
    the JAX arrays in the result after it.

    Exceptions of the call are passed on.
    """
    if not device.startswith("cuda"):
        start_ns = time.perf_counter_ns()
        result = call()
        host_ns = time.perf_counter_ns() - start_ns
        if not (arrays := jax_arrays(result)):
            return result, CallTime(host_ns, host_ns, None)
        wait_for(arrays)
        return result, CallTime(host_ns, time.perf_counter_ns() - start_ns, None)
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
    wait_for(result)
    wall_ns = time.perf_counter_ns() - start_ns
    return result, CallTime(host_ns, wall_ns, event_ns(begin, end))


def event_ns(begin: Any, end: Any) -> int:
    """Nanoseconds on the GPU between two CUDA events that have been reached."""
    return round(float(begin.elapsed_time(end)) * 1e6)
