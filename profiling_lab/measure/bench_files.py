# SPDX-License-Identifier: Apache-2.0
"""`bench`: time functions in files of your own against the first of them, and say whether they differ.

The first function takes part twice. Its second self shows what a difference is worth that has no cause: other
buffers in memory, the place in the round, chance. A function differs from the first only where its interval
is outside of that.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from profiling_lab.errors import LabError, NotEnoughDataError, UsageError
from profiling_lab.measure.agreement import NOT_ASKED, Agreement, agreement
from profiling_lab.measure.calls import jax_arrays, time_call
from profiling_lab.measure.functions import Function, described, load
from profiling_lab.measure.peaks import gpu_of
from profiling_lab.measure.timing import Mode, Timing, compare, ratio, ratio_interval

MIN_ROUNDS = 6
"""with fewer, all of them may fall on one side by chance (1 in 32 with six)"""
SPREAD_FRAC = 0.1
"""half of the samples of a quiet machine are closer together than this"""
_SAMPLE_NS = 100_000
_MOST_CALLS = 10_000
_AGAIN = " again"

SAME, FASTER, SLOWER, UNDECIDED = "no difference seen", "faster", "slower", "too few rounds"


@dataclass(frozen=True, slots=True)
class Measured:
    """One function."""

    name: str
    timing: Timing
    ratio: float | None
    """its time over that of the first; None for the first"""
    low: float | None
    """of the ratio's 95 % interval; None for the first, and with too few rounds"""
    high: float | None
    verdict: str
    """'' for the first, otherwise faster, slower, 'no difference seen' or 'too few rounds'"""
    results: Agreement | None
    """with those of the first; None for the first"""

    @property
    def varies(self) -> bool:
        return self.timing.iqr_frac > SPREAD_FRAC


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The functions in the order in which they were given."""

    rows: tuple[Measured, ...]
    device: str
    mode: Mode
    is_cold: bool
    rounds: int
    calls_per_sample: int
    seed: int
    itself: tuple[float, float] | None
    """the interval of the first function over itself; None with one function or too few rounds"""
    jax_device: str
    """the name of the device that JAX computed on; '' without JAX"""
    jax_gpu: int | None
    """its number if it is a GPU"""

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu" or self.jax_gpu is not None

    def beyond(self, limit_frac: float) -> str:
        """'slower' if a function is slower than the first by more than this, 'undecided' if one may be,
        '' if none is.
        """
        states = {_beyond(row, 1 + limit_frac) for row in self.rows[1:]}
        return next((state for state in ("slower", "undecided") if state in states), "")


def _beyond(row: Measured, limit: float) -> str:
    if row.low is None or row.high is None:
        return "undecided"
    return "slower" if row.low > limit else "undecided" if row.high > limit else ""


def bench(
    names: Sequence[str],
    *,
    device: str | None = None,
    mode: Mode | None = None,
    rounds: int = 30,
    cold: bool = True,
    calls: int | None = None,
    warmup_s: float = 0.2,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    watched: Callable[[str], AbstractContextManager[object]] = lambda device: nullcontext(),
    after_round: Callable[[int], None] | None = None,
) -> BenchResult:
    """Time the functions `FILE:FUNCTION` in turns.

    A function is called with what `inputs()` of its file returns: a tuple is its arguments, a dict its
    keyword arguments, anything else its one argument. A file without inputs() takes that of the first file.
    The generators of random, numpy and torch have the same seed before each.

    device: cpu, cuda or cuda:N (default: where the first call did its work). mode, rounds, cold: see
    `compare`. calls: in one sample (default: on the CPU as many as take a tenth of a
    millisecond).
    rtol, atol: compare what the functions return; with neither nothing is compared. watched: makes a context
    for the measurement alone.

    Raises UsageError, UnreadableInputError for a missing file, NotEnoughDataError if the first function
    raises, LabError if another one does.
    """
    if rounds < 1 or (calls is not None and calls < 1):
        raise UsageError(f"expected at least one round and call, got {rounds} and {calls}")
    if device is not None:
        _check_device(device)
    functions = load(names)
    results: dict[str, object] = {}
    turns: dict[str, partial[object]] = {}
    for each in functions:
        results[each.name], turns[each.name] = each.result(seed)
    values = (results, [(call.args, call.keywords) for call in turns.values()])
    uses_jax = bool(jax_arrays(values))
    _check_nothing(results, uses_jax, rtol is not None or atol is not None)
    device = device or _device_of(values)
    del values
    if mode is None:
        mode = "host" if uses_jax or device == "cpu" else "events"
    per_sample = calls or _calls(turns, mode, device, uses_jax)
    found = _agreements(functions, results, rtol, atol)
    jax_device, jax_gpu = _jax_device(results)
    results.clear()  # they take memory that the functions may need
    first = functions[0].name
    if len(functions) > 1:
        turns[first + _AGAIN] = functions[0].call_with(seed)
    with watched(device if jax_gpu is None else f"cuda:{jax_gpu}"):
        try:
            timings = compare(
                turns,
                device=device,
                mode=mode,
                rounds=rounds,
                warmup_s=warmup_s,
                cold=cold,
                calls_per_sample=per_sample,
                after_round=after_round,
            )
        except LabError:
            raise
        except (Exception, SystemExit) as error:
            raise LabError(f"a later call of {_whose(error, functions)} raised {described(error)}") from error
    if any(not all(timing.samples_ns) for timing in timings.values()):
        raise NotEnoughDataError("a call is too short for the clock: --calls N times N calls in a row")
    itself = _interval(timings.pop(first + _AGAIN, None), timings[first])
    rows = [_measured(timings[each.name], timings[first], itself, found.get(each.name)) for each in functions]
    return BenchResult(
        rows=tuple(rows),
        device=device,
        mode=mode,
        is_cold=cold and mode != "host",
        rounds=rounds,
        calls_per_sample=per_sample,
        seed=seed,
        itself=itself,
        jax_device=jax_device,
        jax_gpu=jax_gpu,
    )


def _check_device(device: str) -> None:
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and (kind == "cpu" or not index.isdecimal())):
        raise UsageError(f"expected the device cpu, cuda or cuda:N, not {device!r}")
    if kind == "cuda":
        gpu_of(int(index or 0))


def _check_nothing(results: dict[str, object], uses_jax: bool, is_compared: bool) -> None:
    for name, result in results.items():
        if result is not None:
            continue
        if uses_jax:
            raise UsageError(
                f"{name} returned nothing: JAX's work is waited for by the arrays that a call returns"
            )
        if is_compared:
            raise UsageError(f"{name} returned nothing, so --rtol and --atol have nothing to compare")


def _device_of(values: object) -> str:
    """The GPU of the tensors in the results and arguments; without one the current GPU that torch uses."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return "cpu"
    found = {str(tensor.device) for tensor in _tensors(values, torch) if tensor.is_cuda}
    if len(found) > 1:
        raise UsageError(f"the functions use several devices, {', '.join(sorted(found))}: --device names one")
    return found.pop() if found else f"cuda:{torch.cuda.current_device()}"


def _tensors(value: object, torch: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each, torch)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each, torch)


def _calls(turns: Mapping[str, Callable[[], object]], mode: Mode, device: str, uses_jax: bool) -> int:
    """The same number for all, by the shortest: the clock itself takes a part of a microsecond."""
    if mode in ("graph", "stream"):
        return 20
    if mode == "events" or device != "cpu" or uses_jax:  # calls of JAX would overlap
        return 1
    shortest = min(min(time_call(call, device="cpu")[1].host_ns for _ in range(3)) for call in turns.values())
    return min(max(math.ceil(_SAMPLE_NS / max(shortest, 1)), 1), _MOST_CALLS)


def _agreements(
    functions: Sequence[Function], results: dict[str, object], rtol: float | None, atol: float | None
) -> dict[str, Agreement]:
    others = [each.name for each in functions[1:]]
    if rtol is None and atol is None:
        return dict.fromkeys(others, NOT_ASKED)
    first = results[functions[0].name]
    return {name: agreement(first, results[name], rtol or 0.0, atol or 0.0) for name in others}


def _jax_device(results: dict[str, object]) -> tuple[str, int | None]:
    """The device of the first array, and its number if it is a GPU."""
    for array in jax_arrays(results):
        for device in array.devices():
            return str(device.device_kind), device.id if device.platform in ("gpu", "cuda", "rocm") else None
    return "", None


def _whose(error: BaseException, functions: Sequence[Function]) -> str:
    """By the innermost frame that is a function's own."""
    at, found = error.__traceback__, "a function"
    own = {getattr(each.function, "__code__", None): each.name for each in functions}
    while at is not None:
        found = own.get(at.tb_frame.f_code, found)
        at = at.tb_next
    return found


def _interval(timing: Timing | None, first: Timing) -> tuple[float, float] | None:
    return None if timing is None or timing.n < MIN_ROUNDS else ratio_interval(timing, first)


def _measured(
    timing: Timing, first: Timing, itself: tuple[float, float] | None, results: Agreement | None
) -> Measured:
    if timing is first:
        return Measured(timing.name, timing, None, None, None, "", None)
    low, high = _interval(timing, first) or (None, None)
    return Measured(timing.name, timing, ratio(timing, first), low, high, verdict(low, high, itself), results)


def verdict(low: float | None, high: float | None, itself: tuple[float, float] | None) -> str:
    """faster or slower only where the interval is outside of that of the first function over itself."""
    if low is None or high is None or itself is None:
        return UNDECIDED
    chance = max(itself[1], 1 / itself[0])  # at least 1, as an interval is not empty
    if high < 1 / chance:
        return FASTER
    return SLOWER if low > chance else SAME
