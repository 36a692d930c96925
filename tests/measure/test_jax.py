# SPDX-License-Identifier: Apache-2.0
"""JAX is asynchronous on every device: a time holds the computation only if its arrays are waited for.

Nothing here depends on how fast this machine is. With a JAX whose clock belongs to the test the numbers are
exact; with the real one each reading of the clock notes whether the result was there.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from profiling_lab.errors import UsageError
from profiling_lab.measure import CallTime, compare, compare_steps, interleaved, step_time, time_call
from profiling_lab.measure.calls import InFlight
from profiling_lab.utils import benchmark_fn

MS = 1_000_000


class MadeJax:
    """Work that is dispatched ends when the host waits for it; both have clocks of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host_ms = 0.0
        self.free_ms = 0.0
        self.waits = 0
        made = self

        class Array:
            def __init__(self, done_ms: float) -> None:
                self.done_ms, self.deleted = done_ms, False

            def is_deleted(self) -> bool:
                return self.deleted

        def leaves(tree: object) -> list[object]:
            if isinstance(tree, dict):
                tree = list(tree.values())
            if isinstance(tree, (list, tuple)):
                return [leaf for each in tree for leaf in leaves(each)]
            return [] if tree is None else [tree]

        def block_until_ready(tree: object) -> object:
            for leaf in leaves(tree):
                assert isinstance(leaf, Array) and not leaf.deleted, "JAX raises for a donated array"
                made.host_ms = max(made.host_ms, leaf.done_ms)
            made.waits += 1
            return tree

        self.Array = Array
        self.module = SimpleNamespace(
            Array=Array, tree=SimpleNamespace(leaves=leaves), block_until_ready=block_until_ready
        )
        monkeypatch.setitem(sys.modules, "jax", self.module)
        monkeypatch.setattr(time, "perf_counter_ns", lambda: round(self.host_ms * MS))
        monkeypatch.setattr(time, "perf_counter", lambda: self.host_ms / 1e3)

    def dispatch(self, host_ms: float, device_ms: float) -> Any:
        """The call returns after `host_ms`; its work takes `device_ms`, after that of the calls before."""
        self.free_ms = max(self.free_ms, self.host_ms) + device_ms
        self.host_ms += host_ms
        return self.Array(self.free_ms)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> MadeJax:
    return MadeJax(monkeypatch)


def test_the_wrong_number_of_a_missing_wait_and_the_right_one(made: MadeJax) -> None:
    """The usual loop says 0.5 ms; a call takes 80."""
    begin = time.perf_counter()
    for _ in range(10):
        made.dispatch(0.5, 80)
    assert (time.perf_counter() - begin) / 10 == pytest.approx(0.5e-3)
    made.host_ms = made.free_ms
    assert benchmark_fn(lambda: made.dispatch(0.5, 80), num_warmup=2, num_runs=10) == pytest.approx(80e-3)


def test_throughput_waits_only_at_the_end(made: MadeJax) -> None:
    """It waited after each call, so the dispatches did not overlap with the work."""

    def call() -> Any:
        made.host_ms += 3  # Python
        return {"loss": [made.dispatch(2, 10)]}

    assert benchmark_fn(call, num_runs=20) == pytest.approx(13e-3)
    made.waits = 0
    rate = benchmark_fn(call, num_warmup=0, num_runs=20, mode="throughput")
    assert rate == pytest.approx((3 + 20 * 10) / 20 * 1e-3) and made.waits == 1


def test_work_that_makes_the_arguments_is_not_counted(made: MadeJax) -> None:
    x = made.dispatch(1, 500)
    assert benchmark_fn(lambda x: made.dispatch(1, 7), (x,), num_warmup=0, num_runs=1) == pytest.approx(7e-3)


def test_a_program_that_loads_jax_in_its_first_call_is_waited_for(
    made: MadeJax, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "jax")

    def call() -> Any:
        monkeypatch.setitem(sys.modules, "jax", made.module)
        return made.dispatch(1, 7)

    assert benchmark_fn(call, num_warmup=1, num_runs=3) == pytest.approx(7e-3)


def test_another_module_called_jax_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace())
    assert benchmark_fn(lambda: {"a": 1}, num_warmup=1, num_runs=2) >= 0


def test_a_call_has_its_dispatch_and_its_work(made: MadeJax) -> None:
    result, times = time_call(lambda: made.dispatch(2, 30), device="cpu")
    assert isinstance(result, made.Array)
    assert times == CallTime(host_ns=2 * MS, wall_ns=30 * MS, gpu_span_ns=None)
    assert time_call(lambda: 5, device="cpu")[1] == CallTime(0, 0, None), "no arrays, nothing to wait for"


@pytest.mark.parametrize(
    "measured",
    [
        lambda step: step_time(step, steps_per_block=4, warmup=1, blocks=3, device="cpu"),
        lambda step: interleaved({"a": step}, steps_per_block=4, warmup=1, blocks=3, device="cpu")["a"],
        lambda step: compare_steps(
            step, {"a": contextlib.nullcontext}, steps_per_block=4, warmup=1, blocks=3, device="cpu"
        )["a"],
        lambda step: compare({"a": step}, device="cpu", rounds=3, calls_per_sample=4)["a"],
    ],
    ids=["step_time", "interleaved", "compare_steps", "compare"],
)
def test_everything_that_times_waits_for_the_arrays(measured: Callable[[Any], Any], made: MadeJax) -> None:
    """Each sample is of four steps that follow each other; none begins with the work of the one before."""
    assert measured(lambda: made.dispatch(1, 25)).samples_ns == (25 * MS,) * 3


def test_donated_arrays_are_not_waited_for(made: MadeJax) -> None:
    """A step may give its state to the next one; waiting for the old state raises."""
    state = made.dispatch(0, 0)

    def step() -> Any:
        nonlocal state
        state.deleted = True
        state = made.dispatch(1, 5)
        return state

    assert step_time(step, steps_per_block=100, warmup=1, blocks=1, device="cpu").samples_ns == (5 * MS,)


def test_few_results_are_kept_and_only_arrays_of_jax(made: MadeJax, monkeypatch: pytest.MonkeyPatch) -> None:
    flight = InFlight()
    for _ in range(1000):
        flight.add({"text": "x", "array": made.dispatch(0.1, 1)})
    assert len(flight._arrays) <= 32
    flight.wait()
    assert not flight._arrays and made.host_ms == pytest.approx(made.free_ms)
    monkeypatch.delitem(sys.modules, "jax")
    flight.add(bytearray(10))
    assert not flight._arrays


def test_events_of_torch_do_not_time_jax(made: MadeJax, monkeypatch: pytest.MonkeyPatch) -> None:
    from profiling_lab.measure import timing

    monkeypatch.setattr(timing, "_on_device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(timing, "_synchronize", lambda: None)
    with pytest.raises(UsageError, match=r"variant 'f' returns JAX arrays"):
        compare({"f": lambda: made.dispatch(1, 60)})


# The real JAX.


class Watched:
    """A long computation, and whether its last result was there at each reading of the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        jax = pytest.importorskip("jax", reason="JAX is not installed")
        self.ready: list[bool] = []
        self.last: Any = None
        clock = time.perf_counter_ns

        def read() -> int:
            if self.last is not None:
                self.ready.append(bool(self.last.is_ready()))
            return clock()

        def product(_: int, x: Any) -> Any:
            return jax.numpy.tanh(x @ x)

        self._work = jax.jit(lambda x: {"y": jax.lax.fori_loop(0, 200, product, x)})
        self.x = jax.numpy.ones((600, 600)) / 600
        self()["y"].block_until_ready()
        monkeypatch.setattr(time, "perf_counter_ns", read)

    def __call__(self) -> Any:
        result = self._work(self.x)
        self.last = result["y"]
        return result


def test_without_the_wait_the_clock_is_read_before_the_result_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Watched(monkeypatch)
    work()
    time.perf_counter_ns()
    assert work.ready == [False], "the time until here is that of the dispatch"
    work.last.block_until_ready()


@pytest.mark.parametrize("mode", ["latency", "throughput"])
def test_with_the_wait_it_is_there(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Watched(monkeypatch)
    assert benchmark_fn(work, num_warmup=1, num_runs=2, mode=mode) > 0
    assert work.ready and all(work.ready)


def test_a_call_of_the_real_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Watched(monkeypatch)
    _, times = time_call(work, device="cpu")
    assert work.ready == [True, False, True], "before, when the call has returned, at the end"
    assert times.host_ns < times.wall_ns


@pytest.mark.gpu
def test_on_the_gpu_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip(f"JAX runs on {jax.default_backend()} here: pip install 'jax[cuda13]'")
    x = jax.numpy.ones((8192, 8192), dtype="bfloat16")
    seconds = benchmark_fn(jax.jit(lambda x: x @ x), (x,), num_runs=20)
    assert 2 * 8192**3 / seconds < 3e15, "faster than any GPU: the product was not waited for"
    work = Watched(monkeypatch)
    benchmark_fn(work, num_warmup=1, num_runs=2)
    assert all(work.ready)
