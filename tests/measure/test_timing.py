# SPDX-License-Identifier: Apache-2.0
"""The harness on the CPU: order, samples, statistics, refusals. Its CUDA modes against work of known
length.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from profiling_lab.errors import UsageError
from profiling_lab.measure import (
    Timing,
    compare,
    compare_steps,
    interleaved,
    ratio,
    ratio_interval,
    step_time,
)


def sleeper(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


def test_median_and_spread() -> None:
    timing = Timing("a", (10, 20, 30, 40, 1000))
    assert (timing.n, timing.median_ns, timing.iqr_ns) == (5, 30, 20)
    assert timing.iqr_frac == pytest.approx(2 / 3)
    assert Timing("one", (7,)).iqr_ns == 0


def test_ratio_pairs_samples_of_a_round() -> None:
    # The clock halves in the second half: the medians' ratio would be 2 as well, but only pairing is exact
    # for each.
    slow, fast = Timing("slow", (200, 220, 400, 440)), Timing("fast", (100, 110, 200, 220))
    assert ratio(slow, fast) == 2.0


def test_the_interval_of_a_ratio_narrows_with_the_rounds_and_holds_it() -> None:
    noise = [0, 7, -3, 12, -9, 4, -1, 9, -6, 2, 5, -8]
    plain = tuple(1000 + 10 * n for n in noise)

    def interval(repeats: int) -> tuple[float, float]:
        costly = tuple(round(1.05 * a) + b for a, b in zip(plain, noise[::-1], strict=True))
        return ratio_interval(Timing("costly", costly * repeats), Timing("plain", plain * repeats))

    few, many = interval(1), interval(40)
    for low, high in (few, many):
        assert low <= 1.055 and high >= 1.045 and low < high
    assert many[1] - many[0] < few[1] - few[0]
    assert interval(1) == few
    same = Timing("same", plain)
    assert ratio_interval(same, same) == (1.0, 1.0)


def test_the_ratio_of_means_sees_a_cost_that_few_samples_have() -> None:
    plain, rare = Timing("plain", (100,) * 20), Timing("rare", (100,) * 19 + (300,))
    assert ratio(rare, plain) == 1.0 and ratio(rare, plain, of_means=True) == 1.1
    assert ratio_interval(rare, plain) == (1.0, 1.0)
    low, high = ratio_interval(rare, plain, of_means=True)
    assert low == 1.0 and 1.1 < high < 1.5


def test_compare_orders_by_length() -> None:
    timings = compare({"long": sleeper(0.004), "short": sleeper(0.001)}, device="cpu", rounds=5, warmup_s=0)
    assert list(timings) == ["long", "short"]
    assert timings["long"].n == timings["short"].n == 5
    assert timings["long"].median_ns >= 4_000_000 > timings["short"].median_ns >= 1_000_000
    assert ratio(timings["long"], timings["short"]) > 1.5


def test_variants_take_turns_and_no_order_repeats_at_once() -> None:
    calls: list[str] = []
    names = ("a", "b", "c")
    compare({n: lambda n=n: calls.append(n) for n in names}, device="cpu", rounds=6, warmup_s=0)
    measured = calls[-18:]
    rounds = [tuple(measured[i : i + 3]) for i in range(0, 18, 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len({r[0] for r in rounds}) == 3, "each variant is first in some round"
    assert all(one != two for one, two in pairwise(rounds))


def test_buffers_take_turns() -> None:
    used: list[int] = []
    compare({"v": [lambda i=i: used.append(i) for i in range(3)]}, device="cpu", rounds=6, warmup_s=0)
    assert used[-6:] == [0, 1, 2, 0, 1, 2]


def test_a_sample_is_one_call_even_if_many_are_made() -> None:
    timings = compare({"v": sleeper(0.001)}, device="cpu", rounds=3, warmup_s=0, calls_per_sample=4)
    assert 1_000_000 <= timings["v"].median_ns < 3_000_000


def test_step_times() -> None:
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        time.sleep(0.001)

    timing = step_time(step, steps_per_block=3, warmup=2, blocks=4, device="cpu")
    assert done == 2 + 3 * 4
    assert timing.n == 4 and timing.median_ns >= 1_000_000


def test_interleaved_runs_abba() -> None:
    order: list[str] = []
    timings = interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        steps_per_block=2, warmup=0, blocks=2, device="cpu",
    )  # fmt: skip
    assert "".join(order) == "aabb" + "bbaa"
    assert {t.n for t in timings.values()} == {2}


def test_compare_steps_enters_a_fresh_context_for_each_block_and_does_not_time_it() -> None:
    entered: list[str] = []

    @contextlib.contextmanager
    def slow_to_enter() -> Iterator[None]:
        entered.append("in")
        time.sleep(0.02)
        yield
        entered.append("out")

    timings = compare_steps(
        sleeper(0.001), {"plain": contextlib.nullcontext, "costly": slow_to_enter},
        steps_per_block=2, warmup=1, blocks=3, device="cpu",
    )  # fmt: skip
    assert entered == ["in", "out"] * 3
    assert timings["costly"].median_ns < 10_000_000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"variants": {}, "device": "cpu"}, "at least one variant"),
        ({"variants": {"v": []}, "device": "cpu"}, "no function to call"),
        ({"variants": {"v": print}, "device": "cpu", "rounds": 0}, "at least one round"),
        ({"variants": {"v": print}, "device": "cpu", "mode": "graph"}, "times CUDA work"),
    ],
)
def test_refusals(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        compare(**arguments)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["events", "graph", "stream"])
def test_cuda_modes_see_the_length_of_a_kernel(mode: str) -> None:
    """A copy twice as long takes about twice the time in every mode, and not the time of its launch, which
    is the same for both. About: other programs may use the GPU meanwhile.
    """
    import torch

    long, short = (torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1 << 30, 1 << 29))
    long_to, short_to = torch.empty_like(long), torch.empty_like(short)
    timings = compare(
        {"long": lambda: long_to.copy_(long), "short": lambda: short_to.copy_(short)},
        mode=mode, rounds=10, calls_per_sample=3,
    )  # type: ignore[arg-type]  # fmt: skip
    assert ratio(timings["long"], timings["short"]) == pytest.approx(2, rel=0.35)


@pytest.mark.multigpu
@pytest.mark.parametrize("mode", ["events", "graph", "stream", "host"])
def test_the_device_that_is_named_is_timed(mode: str) -> None:
    import torch

    a = torch.randn(8192, 8192, device="cuda:1")
    out = torch.empty_like(a)
    timing = compare({"mm": lambda: torch.mm(a, a, out=out)}, device="cuda:1", mode=mode, rounds=5)["mm"]  # type: ignore[arg-type]
    flops = 2 * 8192**3
    assert timing.median_ns > flops / 2e15 * 1e9, "faster than any GPU: events of another device"
    assert torch.cuda.current_device() == 0


@pytest.mark.gpu
def test_short_kernels_are_not_timed_by_their_launch() -> None:
    import torch

    x = torch.ones(1024, device="cuda")
    timing = compare({"add": lambda: x.add_(1)}, mode="events")["add"]
    assert timing.median_ns < 8_000, "a launch from Python alone takes about that long"


@pytest.mark.gpu
def test_flush_makes_reads_cold() -> None:
    """A buffer that fits the L2 cache several times over reads faster from it than from memory."""
    import torch

    x = torch.ones(4 << 20, device="cuda")  # 16 MB
    out = torch.empty_like(x)
    read = {"read": lambda: torch.neg(x, out=out)}
    warm = compare(read, cold=False)["read"].median_ns
    assert compare(read, cold=True)["read"].median_ns > 1.05 * warm


def test_after_each_round_it_is_told() -> None:
    told: list[int] = []
    calls: list[int] = []
    compare(
        {"a": lambda: calls.append(len(told))}, device="cpu", rounds=3, warmup_s=0, after_round=told.append
    )
    assert told == [1, 2, 3] and calls[-3:] == [0, 1, 2], "between the rounds"
