# SPDX-License-Identifier: Apache-2.0
"""Grade a repaired program of E31: the same results, few compilations, and times that hold their steps.

Nothing is judged by how fast this machine is. JAX itself tells of each compilation. For the times, `update`
is followed by a computation that is made long enough to be seen on any machine, and each reading of the clock
notes whether it is done.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from profiling_lab.exercises.exercise import GradedCheck, Need, failed, not_checked, passed
from profiling_lab.exercises.program_repair import load

LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
"""JAX's event for a computation that it had not seen; it comes for results of its compilation cache too"""
COMPILES_AT_MOST = 2
STEPS = 24
ROUNDING = 1e-4
DELAY_S = 0.15
SAME_S = 1e-9
"""a reported time is a difference of two readings, perhaps in other units"""


def checks(starter: Path, repaired: Path) -> list[GradedCheck]:
    """The checks "result", "compilations" and "timing"."""
    if not repaired.is_file():
        return [failed("result", f"there is no {repaired.name} in this folder")]
    if repaired.read_bytes() == starter.read_bytes():
        return [failed("result", f"{repaired.name} is unchanged: nothing is repaired yet")]
    if missing := Need.JAX.missing():
        return [not_checked(name, missing) for name in ("result", "compilations", "timing")]
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others use the GPU as well
    try:
        before = load(starter, "starter_program")
        clock = Clock()
        with clock.read_by_programs():  # from now on: a program may import the function itself
            after = load(repaired, "repaired_program")
            if wrong := difference(before, after):
                reason = "it does not matter while the result differs"
                return [
                    failed("result", wrong),
                    *(not_checked(n, reason) for n in ("compilations", "timing")),
                ]
            return [
                passed("result", "losses and params agree, on new random data"),
                _compilations(before, after),
                _timing(before, after, clock),
            ]
    except (
        Exception,
        SystemExit,
    ) as error:  # a learner's code may raise anything, and the learner must see it
        return [failed("result", f"{repaired.name} raises {type(error).__name__}: {error}")]


def _data(starter: ModuleType, steps: int) -> tuple[Any, Any]:
    """New params and batches of a small network."""
    seed = secrets.randbelow(2**31)
    return starter.make_params(seed, width=16, depth=2), starter.make_batches(steps, seed + 1, rows=32)


def difference(before: ModuleType, after: ModuleType) -> str:
    """The first difference in the results of the repaired program; empty if they agree within rounding."""
    import jax
    import numpy as np

    for steps in (9, 6):
        params, batches = _data(before, steps)
        given = {"rate": random.uniform(0.02, 0.1), "momentum": random.uniform(0.5, 0.95), "decay": 1e-3}
        old, new = (
            each.train(jax.tree.map(lambda x: x.copy(), params), batches, each.Settings(**given))
            for each in (before, after)
        )
        if len(new) != 3:
            return "train must return the params, the losses and the seconds of each step"
        if len(new[1]) != steps or len(new[2]) != steps:
            return f"train returns {len(new[1])} losses and {len(new[2])} times for {steps} batches"
        right, found = ({"the loss": list(map(float, each[1])), "the params": each[0]} for each in (old, new))
        for name, expected in right.items():
            pair = [jax.tree.leaves(tree) for tree in (expected, found[name])]
            if [np.shape(x) for x in pair[0]] != [np.shape(x) for x in pair[1]]:
                return f"{name} have another form"
            for a, b in zip(*(map(np.asarray, leaves) for leaves in pair), strict=True):
                distance, largest = float(np.abs(a - b).max()), float(np.abs(a).max())
                if not distance <= ROUNDING * max(largest, 1e-6):  # written so that NaN fails
                    return (
                        f"{name} differ by {distance:.1e} of {largest:.1e}: the program must train as before"
                    )
    return ""


def _compilations(before: ModuleType, after: ModuleType) -> GradedCheck:
    """Counted in a second call of train, with another rate and other batches: the first one may compile."""
    counts = []
    for program in (before, after):
        params, batches = _data(before, STEPS)
        program.train(params, batches[:5], program.Settings())
        params, _ = _data(before, 1)
        with compilations() as seen:
            program.train(params, batches, program.Settings(rate=random.uniform(0.01, 0.02)))
        counts.append(len(seen))
    if not counts[0]:
        return not_checked("compilations", "this version of JAX does not tell of its compilations")
    said = f"{counts[1]} compilations in {STEPS} further steps, {counts[0]} before"
    if counts[1] <= COMPILES_AT_MOST:
        return passed("compilations", said)
    return failed("compilations", f"{said}; the goal is at most {COMPILES_AT_MOST}")


_listening: list[list[str]] = []
_registered: list[bool] = []


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The computations that JAX compiles meanwhile."""
    import jax

    if not _registered:  # once: versions differ in how a listener is removed
        _registered.append(True)
        jax.monitoring.register_event_duration_secs_listener(_listen)
    seen: list[str] = []
    _listening.append(seen)
    try:
        yield seen
    finally:
        _listening.pop()


def _listen(event: str, _: float, **about: object) -> None:
    if event == LOWERED:
        for seen in _listening:
            seen.append(str(about.get("fun_name", "")))


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of the clock."""

    at_s: float
    calls: int
    """calls of update before it"""
    is_busy: bool
    """JAX still computed the result of one of them"""


class Clock:
    """The clock of the programs, which notes how it is read."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self.results: list[Any] = []
        """one array for each call of update, which is there when all of the call is computed"""

    @contextmanager
    def read_by_programs(self) -> Iterator[None]:
        real, real_ns = time.perf_counter, time.perf_counter_ns

        def read_ns() -> int:
            is_busy = any(not each.is_ready() for each in self.results)
            now_ns = real_ns()
            self.readings.append(Reading(now_ns / 1e9, len(self.results), is_busy))
            return now_ns

        time.perf_counter, time.perf_counter_ns = lambda: read_ns() / 1e9, read_ns
        try:
            yield
        finally:
            time.perf_counter, time.perf_counter_ns = real, real_ns


def _timing(before: ModuleType, after: ModuleType, clock: Clock) -> GradedCheck:
    real, delayed = after.update, _delay()

    def update(*arguments: Any, **named: Any) -> Any:
        result, done = delayed(real(*arguments, **named))
        clock.results.append(done)
        return result

    vars(after)["update"] = update
    try:
        params, batches = _data(before, 7)
        after.train(params, batches[:2], after.Settings())  # compiles
        params, _ = _data(before, 1)
        clock.readings.clear()
        clock.results.clear()
        _, _, times = after.train(params, batches, after.Settings())
        calls = len(clock.results)
    finally:
        vars(after)["update"] = real
    if calls != len(batches):
        return failed("timing", f"train calls update {calls} times for {len(batches)} batches")
    wrong = untimed([float(each) for each in times], clock.readings)
    if wrong:
        return failed("timing", wrong)
    return passed("timing", "each time holds one call of update, to the end of its computation")


def untimed(times: list[float], readings: list[Reading]) -> str:
    """Why these are not the times of the steps, in order; empty if they are."""
    first = 0
    for number, took_s in enumerate(times):
        pairs = [
            (i, j)
            for i in range(first, len(readings))
            for j in range(i + 1, len(readings))
            if abs(readings[j].at_s - readings[i].at_s - took_s) <= SAME_S
        ]
        if not pairs:
            return f"the time of step {number} is no difference of two readings of time.perf_counter"
        of_one = [(i, j) for i, j in pairs if readings[j].calls - readings[i].calls == 1]
        if not of_one:
            return f"the time of step {number} does not hold one call of update"
        i, j = of_one[0]
        if readings[j].is_busy:
            return f"the clock is read while JAX still computes step {number}"
        if readings[i].is_busy:
            return f"the time of step {number} holds what JAX still had to compute from before"
        first = j
    return ""


def _delay() -> Callable[[Any], tuple[Any, Any]]:
    """A function that returns the same arrays, and one more, only after a while."""
    import jax

    jnp = jax.numpy

    def delay(tree: Any, rounds: Any) -> tuple[Any, Any]:
        first = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree)).astype("float32")
        product = jax.lax.fori_loop(
            0, rounds, lambda _, x: jnp.tanh(x @ x), jnp.full((128, 128), 1e-3) + 0 * first
        )
        nothing = 0 * jnp.sum(product)
        return jax.tree.map(lambda leaf: leaf + nothing.astype(leaf.dtype), tree), nothing

    delayed = jax.jit(delay)
    rounds, probe = 64, jnp.zeros(1)
    while True:
        jax.block_until_ready(delayed(probe, rounds))
        begin_ns = time.monotonic_ns()
        jax.block_until_ready(delayed(probe, rounds))
        if time.monotonic_ns() - begin_ns >= DELAY_S * 1e9 or rounds >= 2**28:
            return lambda tree: delayed(tree, rounds)
        rounds *= 2
