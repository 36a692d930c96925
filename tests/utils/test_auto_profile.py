# SPDX-License-Identifier: Apache-2.0
"""auto_profile: what it measures, that the function keeps its meaning, and what is refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
import warnings

import pytest
import torch
from package_root import PACKAGE_ROOT

from profiling_lab.errors import UsageError
from profiling_lab.utils.easy_profiler import ProfilingResult, auto_profile


class Clock:
    """The host's clock under the test's control."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ns = 0
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.ns)

    def tick(self, ms: float) -> None:
        self.ns += round(ms * 1e6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@auto_profile
def pickled(x: int) -> int:
    return x + 1


def test_bare_measures_every_call_once(clock: Clock) -> None:
    calls = []

    @auto_profile
    def work(ms: float) -> float:
        calls.append(ms)
        clock.tick(ms)
        return 2 * ms

    assert work.last_result is None
    assert work(3) == 6 and work(ms=5) == 10
    assert calls == [3, 5]
    result = work.last_result
    assert isinstance(result, ProfilingResult)
    assert (result.iterations, result.median_ms, result.device) == (1, 5.0, "cpu")
    assert result.std_ms is None  # of one call it is not known
    assert work.__name__ == "work" and "work" in result.name


def test_warmup_and_iterations_of_the_readme(clock: Clock) -> None:
    durations = iter([100, 100, 100, *range(1, 11)])
    results = []

    @auto_profile(warmup=3, iterations=10)
    def train_step(model: object, batch: object) -> int:
        clock.tick(next(durations))
        results.append(len(results))
        return results[-1]

    assert train_step(None, None) == 0, "the result of the first call, as without the decorator"
    measured = train_step.last_result
    assert measured is not None and len(results) == 13
    assert measured.wall.samples_ns == tuple(ms * 1_000_000 for ms in range(1, 11))
    assert (measured.warmup, measured.iterations) == (3, 10)
    assert (measured.median_ms, measured.mean_ms, measured.min_ms, measured.max_ms) == (5.5, 5.5, 1.0, 10.0)
    assert measured.std_ms == pytest.approx(3.0277, abs=1e-4)
    assert measured.gpu_span_ms is None and measured.peak_memory_bytes is None
    assert str(measured).startswith("train_step on cpu: 5.500 ms a call, median of 10 calls (1.000 ms to 10.")
    durations = iter([1])
    assert train_step(None, None) == 13, "later calls run once"
    assert train_step.last_result is measured


def test_a_dict_for_json() -> None:
    pickled(1)
    assert pickled.last_result is not None
    entries = pickled.last_result.to_dict()
    assert (
        entries["iterations"] == 1 and entries["gpu_span_ms"] is None and entries["peak_memory_bytes"] is None
    )


def test_a_step_that_trains_is_never_repeated() -> None:
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    @auto_profile(warmup=1, iterations=2)
    def train_step() -> float:
        optimizer.zero_grad()
        (weight * 1).backward()
        optimizer.step()
        return weight.item()

    with pytest.warns(RuntimeWarning, match=r"train_step changes the model .* not repeated"):
        assert train_step() == 0.0
    assert train_step.last_result is None, "the only call so far was to warm up"
    assert [train_step() for _ in range(3)] == [-1.0, -2.0, -3.0]
    assert train_step.last_result is not None and train_step.last_result.iterations == 2


def test_gradients_are_not_accumulated_by_repeating() -> None:
    weight = torch.nn.Parameter(torch.ones(()))
    original = torch.autograd.backward

    @auto_profile(iterations=5)
    def backward() -> None:
        (weight * 3).backward()

    with pytest.warns(RuntimeWarning, match=r"backward\(\) ran"):
        backward()
    assert weight.grad is not None and weight.grad.item() == 3.0
    assert torch.autograd.backward is original


def test_repeating_leaves_the_random_numbers() -> None:
    def draw() -> float:
        return torch.rand(()).item()

    torch.manual_seed(7)
    expected = [draw(), draw()]
    torch.manual_seed(7)
    assert [auto_profile(warmup=2, iterations=3)(draw)(), draw()] == expected


def test_program_s_own_calls_are_counted_with_repeat_false(clock: Clock) -> None:
    @auto_profile(warmup=1, iterations=2, repeat=False)
    def work(ms: float) -> None:
        clock.tick(ms)

    for ms in (9, 1, 3, 100):
        work(ms)
    assert work.last_result is not None and work.last_result.wall.samples_ns == (1_000_000, 3_000_000)
    work.reset()
    work(9), work(5)
    assert work.last_result.wall.samples_ns == (5_000_000,)


def test_what_cannot_be_repeated_still_returns() -> None:
    batches = iter([1, 2])

    @auto_profile(warmup=1, iterations=5)
    def load() -> int:
        return next(batches)

    with pytest.warns(RuntimeWarning, match="load could not be repeated, StopIteration.*1 of 5 calls"):
        assert load() == 1
    assert load.last_result is not None and load.last_result.iterations == 1


def test_an_exception_of_the_function_is_passed_on() -> None:
    @auto_profile(warmup=1)
    def fail() -> None:
        raise KeyError("mine")

    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            fail()
    assert fail.last_result is None


def test_recursion_is_one_call() -> None:
    @auto_profile
    def factorial(n: int) -> int:
        return n * factorial(n - 1) if n else 1

    assert factorial(5) == 120
    assert factorial.last_result is not None and factorial.last_result.iterations == 1


def test_switched_off_it_only_calls() -> None:
    calls = []

    @auto_profile(warmup=3, iterations=10, enabled=False)
    def work() -> None:
        calls.append(1)

    work()
    assert calls == [1] and work.last_result is None


def test_a_method_and_a_name() -> None:
    class Model:
        @auto_profile(name="Model's forward")
        def forward(self, x: int) -> int:
            return x + 1

    model = Model()
    assert model.forward(1) == 2
    assert model.forward.last_result.name == "Model's forward"
    assert Model.forward.last_result is model.forward.last_result


def test_a_decorated_function_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(pickled)) is pickled


def test_bad_arguments_are_one_sentence() -> None:
    with pytest.raises(UsageError, match="warmup must be 0 or more and iterations at least 1, not -1 and 1"):
        auto_profile(warmup=-1)
    with pytest.raises(UsageError, match="iterations at least 1, not 0 and 0"):
        auto_profile(iterations=0)

    async def late() -> None: ...

    with pytest.raises(UsageError, match="late is a generator or coroutine function"):
        auto_profile(late)


def test_it_works_without_torch_and_does_not_load_it() -> None:
    program = (
        "import sys\n"
        "from profiling_lab.utils.easy_profiler import auto_profile\n"
        "f = auto_profile(warmup=1, iterations=2)(lambda: 5)\n"
        "assert f() == 5 and f.last_result.iterations == 2\n"
        "assert not {'torch', 'pyarrow'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(PACKAGE_ROOT)},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_compiled_region_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)

    @auto_profile
    def work() -> int:
        return 1

    assert work() == 1 and work.last_result is None


@pytest.mark.gpu
def test_on_a_gpu_the_work_is_waited_for() -> None:
    a = torch.randn(2048, 2048, device="cuda")

    @auto_profile(warmup=2, iterations=5)
    def product() -> torch.Tensor:
        return a @ a

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = product()
    torch.testing.assert_close(out, a @ a)
    result = product.last_result
    assert result is not None and result.device == "cuda:0" and result.gpu_span is not None
    assert all(g <= w for g, w in zip(result.gpu_span.samples_ns, result.wall.samples_ns, strict=True))
    assert all(h <= w for h, w in zip(result.host.samples_ns, result.wall.samples_ns, strict=True))
    assert result.peak_memory_bytes is not None and result.peak_memory_bytes >= 2 * a.numel() * 4


@pytest.mark.gpu
def test_a_captured_call_is_left_alone() -> None:
    x = torch.ones(8, device="cuda")
    twice = auto_profile(lambda: x.mul_(2))
    twice()
    before = twice.last_result
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        twice()
    graph.replay()
    assert twice.last_result is before and x[0].item() == 4.0
