# SPDX-License-Identifier: Apache-2.0
"""Time variants of the same work against each other: interleaved, warm, with a full launch queue, cold L2.

Absolute times move by several per cent from run to run with clocks and temperature, so only variants that
took turns in one process are comparable. Hence there is no function that times one thing: `compare` times
all of them, in changing order, round after round.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from profiling_lab.errors import UsageError
from profiling_lab.measure.calls import InFlight, jax_arrays, wait_for

Call = Callable[[], object]
Mode = Literal["events", "graph", "stream", "host"]

_FLUSH_L2_TIMES = 4
"""The flush reads this many times the L2 cache: replacement is not exactly least-recently-used."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The samples of one variant, in the order they were taken: sample i of every variant belongs to round
    i.
    """

    name: str
    samples_ns: tuple[int, ...]

    @property
    def n(self) -> int:
        return len(self.samples_ns)

    @property
    def median_ns(self) -> float:
        return statistics.median(self.samples_ns)

    @property
    def iqr_ns(self) -> float:
        """Between the first and the third quartile lies half of the samples; 0 for a single sample."""
        if self.n < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.samples_ns, n=4, method="inclusive")
        return third - first

    @property
    def iqr_frac(self) -> float:
        return self.iqr_ns / self.median_ns if self.median_ns else 0.0


def ratio(numerator: Timing, denominator: Timing, *, of_means: bool = False) -> float:
    """How many times longer the first takes: the median over rounds of the ratio of the samples of a round.

    Samples of one round share the clock and the temperature; the ratio of two medians would not use that.
    of_means: the ratio of the means, which sees a cost that only a few samples have.
    """
    return _ratio(_rounds(numerator, denominator), of_means)


def ratio_interval(
    numerator: Timing,
    denominator: Timing,
    *,
    of_means: bool = False,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> tuple[float, float]:
    """Between which values `ratio` lies: the bootstrap interval over rounds, the same for the same samples.

    Resolves what an interquartile range cannot: how far the ratio itself may be off.
    """
    rounds, draw = _rounds(numerator, denominator), random.Random(0).choices
    ratios = sorted(_ratio(draw(rounds, k=len(rounds)), of_means) for _ in range(resamples))
    tail = (1 - confidence) / 2
    return ratios[int(tail * resamples)], ratios[int((1 - tail) * resamples) - 1]


def _rounds(numerator: Timing, denominator: Timing) -> list[tuple[int, int]]:
    return list(zip(numerator.samples_ns, denominator.samples_ns, strict=True))


def _ratio(rounds: list[tuple[int, int]], of_means: bool) -> float:
    if of_means:
        return sum(a for a, _ in rounds) / sum(b for _, b in rounds)
    return statistics.median(a / b for a, b in rounds)


def compare(
    variants: Mapping[str, Call | Sequence[Call]],
    *,
    device: str = "cuda",
    mode: Mode | None = None,
    rounds: int = 30,
    warmup_s: float = 0.1,
    cold: bool = True,
    calls_per_sample: int = 1,
    after_round: Callable[[int], None] | None = None,
) -> dict[str, Timing]:
    """Time the variants against each other and return one Timing per name; a sample is the time of one call.

    A variant is a function without arguments, or several that do the same work on different buffers and take
    turns. device: "cpu", or the CUDA device of the calls, such as "cuda:1"; it is current during the calls.

    mode  "events"  GPU time of each call between two CUDA events (the default on CUDA). The calls of a round
                    are queued behind work that keeps the GPU busy: otherwise a short kernel would be as long
                    as its launch.
          "graph"   GPU time of `calls_per_sample` calls captured in one CUDA graph, divided by their number:
                    for kernels of a few microseconds, whose launch takes longer than they do. Calls must be
                    capturable.
          "stream"  `calls_per_sample` calls in a row between two events, divided by their number: the time
                    in a Python loop, with the launches where they are slower than the kernels.
          "host"    the wall clock around each call, for work on the CPU (the default there), and for JAX on
                    any device: give device="cpu", and return the arrays, which are waited for.
    cold  read a buffer of several times the L2 cache before each sample, so that no input waits in the
          cache. It is read, not written: what a flush leaves dirty would be written back at the sample's
          expense.

    warmup_s is per variant and contains at least two calls. after_round is told how many rounds are done,
    between rounds, where nothing is timed and the GPU is idle. Raises UsageError for an empty comparison, and
    for JAX arrays in any mode but "host".
    """
    if not variants:
        raise UsageError("compare expected at least one variant, got none")
    if rounds < 1 or calls_per_sample < 1:
        raise UsageError(f"compare expected at least one round and call, got {rounds} and {calls_per_sample}")
    on_cuda = device.startswith("cuda")
    if mode is None:
        mode = "events" if on_cuda else "host"
    if not on_cuda and mode != "host":
        raise UsageError(f"compare: mode {mode!r} times CUDA work, but device is {device!r}")
    calls = {name: [v] if callable(v) else list(v) for name, v in variants.items()}
    if empty := [name for name, turns in calls.items() if not turns]:
        raise UsageError(f"compare: variant {empty[0]!r} has no function to call")
    with _on_device(device) if on_cuda else nullcontext():
        for name, turns in calls.items():
            uses_jax = _warm_up(turns, warmup_s, _synchronize if on_cuda else None)
            if uses_jax and mode != "host":
                raise UsageError(
                    f"compare: variant {name!r} returns JAX arrays, which mode {mode!r} cannot time: its "
                    'events are on a stream of torch. With device="cpu" arrays of JAX are waited for, on '
                    "whatever device they are"
                )
        if mode == "host":
            samples = _on_host(
                calls, rounds, calls_per_sample, _synchronize if on_cuda else None, after_round or _ignore
            )
        else:
            samples = _on_cuda(calls, mode, rounds, calls_per_sample, cold, after_round or _ignore)
    return {name: Timing(name, tuple(times)) for name, times in samples.items()}


def _ignore(done: int) -> None:
    pass


def _on_device(device: str) -> AbstractContextManager[None]:
    import torch

    return torch.cuda.device(device)  # type: ignore[no-any-return]


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()


def _warm_up(turns: list[Call], seconds: float, synchronize: Call | None) -> bool:
    """By time, not by number: compilation, caches and clocks all stabilise with time. Every buffer is
    touched. Returns whether the results hold JAX arrays.
    """
    uses_jax = False
    end = time.perf_counter() + seconds
    done = 0
    while done < max(2, len(turns)) or time.perf_counter() < end:
        arrays = jax_arrays(turns[done % len(turns)]())
        uses_jax |= bool(arrays)
        wait_for(arrays)
        done += 1
        if synchronize is not None:
            synchronize()
    return uses_jax


def _order(names: list[str], round_number: int) -> list[str]:
    """Each round starts with another variant, and every second round runs backwards, so that no variant
    always follows the same.
    """
    shift = round_number % len(names)
    turned = names[shift:] + names[:shift]
    return turned[::-1] if round_number % 2 else turned


def _on_host(
    calls: dict[str, list[Call]],
    rounds: int,
    per_sample: int,
    synchronize: Call | None,
    after_round: Callable[[int], None],
) -> dict[str, list[int]]:
    samples: dict[str, list[int]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in _order(list(calls), number):
            turns = calls[name]
            if synchronize is not None:
                synchronize()
            results = InFlight()
            start = time.perf_counter_ns()
            for i in range(per_sample):
                results.add(turns[(number * per_sample + i) % len(turns)]())
            if synchronize is not None:
                synchronize()
            results.wait()
            samples[name].append((time.perf_counter_ns() - start) // per_sample)
        after_round(number + 1)
    return samples


def _on_cuda(
    calls: dict[str, list[Call]],
    mode: Mode,
    rounds: int,
    per_sample: int,
    cold: bool,
    after_round: Callable[[int], None],
) -> dict[str, list[int]]:
    import torch

    if mode == "events":
        per_sample = 1
    flush = _Flush()
    graphs = {name: _capture(turns, per_sample) for name, turns in calls.items()} if mode == "graph" else {}
    samples: dict[str, list[int]] = {name: [] for name in calls}
    for number in range(rounds):
        spans: dict[str, tuple[Any, Any]] = {}
        flush()  # the queue starts with work: the CPU is ahead when the first event is reached
        for name in _order(list(calls), number):
            turns = calls[name]

            def play(name: str = name, turns: list[Call] = turns, first: int = number * per_sample) -> None:
                if mode == "graph":
                    graphs[name].replay()
                else:
                    for i in range(per_sample):
                        turns[(first + i) % len(turns)]()

            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if cold:
                flush()
            else:
                play()  # untimed: what stood in the cache before belongs to the others and to the flush
            begin.record()
            play()
            end.record()
            spans[name] = (begin, end)
        torch.cuda.synchronize()
        for name, (begin, end) in spans.items():
            samples[name].append(round(begin.elapsed_time(end) * 1e6 / per_sample))
        after_round(number + 1)
    return samples


def _capture(turns: list[Call], count: int) -> Any:
    """A graph of `count` calls. What they allocate lives in the graph's pool, which the graph keeps."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            turns[i % len(turns)]()
    graph.replay()
    return graph


class _Flush:
    """Fills the L2 cache with clean lines of a buffer of its own."""

    def __init__(self) -> None:
        import torch

        l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._buffer = torch.zeros(_FLUSH_L2_TIMES * l2_bytes // 4, dtype=torch.float32, device="cuda")
        self._result = torch.zeros((), dtype=torch.float32, device="cuda")

    def __call__(self) -> None:
        import torch

        torch.amax(self._buffer, dim=0, out=self._result)
