# SPDX-License-Identifier: Apache-2.0
"""Time steps of a running program, such as training steps, and the overhead of a context around them.

A step of JAX must return what it computes: its arrays are waited for, and nothing else of JAX can be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from profiling_lab.errors import UsageError
from profiling_lab.measure.calls import InFlight, synchronizer, wait_for
from profiling_lab.measure.timing import Timing


def _run(step: Callable[[], object], count: int, synchronize: Callable[[], None]) -> int:
    """Nanoseconds per step of `count` steps. Synchronises with the GPU only at both ends, like a training
    loop, and waits only at the end for JAX arrays.
    """
    synchronize()
    results = InFlight()
    start = time.perf_counter_ns()
    for _ in range(count):
        results.add(step())
    synchronize()
    results.wait()
    return (time.perf_counter_ns() - start) // count


def step_time(
    step: Callable[[], object],
    *,
    steps_per_block: int = 10,
    warmup: int = 3,
    blocks: int = 5,
    device: str = "cuda",
    name: str = "step",
) -> Timing:
    """Time `blocks` blocks of `steps_per_block` steps after `warmup` steps; a sample is the time per step of
    one block.
    """
    _check(steps_per_block, blocks)
    synchronize = synchronizer(device)
    for _ in range(warmup):
        wait_for(step())
    return Timing(name, tuple(_run(step, steps_per_block, synchronize) for _ in range(blocks)))


def interleaved(
    steps: Mapping[str, Callable[[], object]],
    *,
    steps_per_block: int = 10,
    warmup: int = 3,
    blocks: int = 5,
    device: str = "cuda",
) -> dict[str, Timing]:
    """Time steps of several programs interleaved: A B, B A, A B, ... Sample i of each belongs to block i."""
    return _interleave(
        {name: (step, nullcontext) for name, step in steps.items()}, steps_per_block, warmup, blocks, device
    )


def compare_steps(
    step: Callable[[], object],
    contexts: Mapping[str, Callable[[], AbstractContextManager[object]]],
    *,
    steps_per_block: int = 10,
    warmup: int = 3,
    blocks: int = 5,
    device: str = "cuda",
) -> dict[str, Timing]:
    """Time the same step inside different contexts, interleaved as in `interleaved`.

    `contexts` maps names to functions that make a fresh context manager, such as contextlib.nullcontext and
    `lambda: profiling_lab.record(path)`. Entering and leaving is not timed, nor are the first `warmup` steps
    inside. `ratio` of two of the timings is the cost of one context over the other.
    """
    return _interleave(
        {name: (step, context) for name, context in contexts.items()}, steps_per_block, warmup, blocks, device
    )


def _interleave(
    programs: dict[str, tuple[Callable[[], object], Callable[[], AbstractContextManager[object]]]],
    steps_per_block: int,
    warmup: int,
    blocks: int,
    device: str,
) -> dict[str, Timing]:
    if not programs:
        raise UsageError("expected at least one program to time, got none")
    _check(steps_per_block, blocks)
    synchronize = synchronizer(device)
    samples: dict[str, list[int]] = {name: [] for name in programs}
    for block in range(blocks):
        names = list(programs) if block % 2 == 0 else list(programs)[::-1]
        for name in names:
            step, context = programs[name]
            with context():
                for _ in range(warmup):
                    wait_for(step())
                samples[name].append(_run(step, steps_per_block, synchronize))
    return {name: Timing(name, tuple(times)) for name, times in samples.items()}


def _check(steps: int, blocks: int) -> None:
    if steps < 1 or blocks < 1:
        raise UsageError(f"expected at least one step and one block, got {steps} and {blocks}")
