# SPDX-License-Identifier: Apache-2.0
"""auto_profile: time a function where the program calls it."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Generic, ParamSpec, TypeVar, overload

from profiling_lab.errors import UsageError
from profiling_lab.measure import CallTime, time_call
from profiling_lab.utils import nvtx
from profiling_lab.utils.devices import allocator, chosen_device, loaded_torch
from profiling_lab.utils.result import ProfilingResult

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Profiled(Generic[P, R]):
    """A function that auto_profile measures. It is called like the function.

    last_result: the measurement, None before there is one.
    """

    last_result: ProfilingResult | None

    def __init__(
        self, func: Callable[P, R], name: str, enabled: bool, warmup: int, iterations: int, repeat: bool
    ) -> None:
        functools.update_wrapper(self, func)
        self.last_result = None
        self._func, self._name, self._enabled = func, name, enabled
        self._warmup, self._iterations, self._repeat = warmup, iterations, repeat
        self._busy = False
        self.reset()

    def __reduce__(self) -> str:
        return str(vars(self)["__qualname__"])  # pickled by name, as a function is

    def reset(self) -> None:
        """Measure again, from the next call on."""
        self._seen = 0
        self._times: list[CallTime] = []
        self._peak_bytes: int | None = None

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method: bound to its object, with last_result."""
        return self if instance is None else _Bound(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        call = functools.partial(self._func, *args, **kwargs)
        each_call = self._warmup + self._iterations == 1
        done = self._seen >= self._warmup + self._iterations
        if not self._enabled or self._busy or (done and not each_call) or _cannot_wait():
            return call()
        self._busy = True  # a recursive call, or one on another thread, belongs to the measured one
        try:
            if each_call:
                self.reset()
            first = self._seen == 0
            if not (first and self._repeat and not each_call):
                return self._measured(call)
            with _state_changes() as changes:
                result = self._measured(call)
            if changes:
                self._repeat = False
                warnings.warn(
                    f"{self._name} changes the model ({changes[0]}), so it is not repeated: the calls of the "
                    "program are measured instead, as with repeat=False",
                    RuntimeWarning,
                    stacklevel=2,
                )
            else:
                self._repeat_call(call)
            return result
        finally:
            self._busy = False

    def _repeat_call(self, call: Callable[[], object]) -> None:
        """The rest of the calls. Their results are dropped, and torch's random numbers stay as they were."""
        try:
            with _same_random_numbers():
                while self._seen < self._warmup + self._iterations:
                    self._measured(call)
        except Exception as error:
            self._seen = self._warmup + self._iterations
            warnings.warn(
                f"{self._name} could not be repeated, {type(error).__name__}: {error}; "
                f"{len(self._times)} of {self._iterations} calls were measured",
                RuntimeWarning,
                stacklevel=3,
            )

    def _measured(self, call: Callable[[], T]) -> T:
        before = chosen_device()
        if before != "cpu":
            allocator().reset_peak_memory_stats(before)

        def complete() -> T:
            result = call()
            if before == "cpu" and (cuda := allocator()) is not None:
                cuda.synchronize()  # the program's first use of the GPU was in this call
            return result

        with nvtx.range(self._name):
            result, times = time_call(complete, device=before)
        device = chosen_device()
        self._seen += 1
        if self._seen > self._warmup:
            self._times.append(times)
            if device != "cpu":
                self._peak_bytes = max(self._peak_bytes or 0, allocator().max_memory_allocated(device))
            self.last_result = ProfilingResult.of(
                self._name, device, self._warmup, self._times, peak_memory_bytes=self._peak_bytes
            )
        return result


class _Bound:
    def __init__(self, profiled: Profiled[Any, Any], instance: object) -> None:
        self.__wrapped__, self.__self__ = profiled, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(self.__self__, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


@overload
def auto_profile(func: Callable[P, R]) -> Profiled[P, R]: ...
@overload
def auto_profile(
    *,
    name: str | None = None,
    enabled: bool = True,
    warmup: int = 0,
    iterations: int = 1,
    repeat: bool = True,
) -> Callable[[Callable[P, R]], Profiled[P, R]]: ...
def auto_profile(
    func: Callable[P, R] | None = None,
    *,
    name: str | None = None,
    enabled: bool = True,
    warmup: int = 0,
    iterations: int = 1,
    repeat: bool = True,
) -> Profiled[P, R] | Callable[[Callable[P, R]], Profiled[P, R]]:
    """Measure a function's calls, in an NVTX range `name` each. The measurement is its `last_result`.

    Bare (@auto_profile): every call is measured, and last_result is that of the last one. With warmup and
    iterations: the first call runs `warmup` + `iterations` times, the last `iterations` of them are measured,
    and the result is that of the first; later calls are not measured (`reset()` begins again). The function
    should leave nothing behind; torch's random numbers continue as after one call. One in which an optimizer
    steps or backward() runs is not repeated: then, and with repeat=False, the program's own calls are
    counted, `warmup` of them and then `iterations` that are measured.

    Each measured call waits for the GPU before and after, and resets the peak of torch's memory statistics.
    enabled=False: the function is only called. Within a CUDA graph capture or a torch.compile region too.

    Raises UsageError for counts that are none, and for a generator or coroutine function, whose call does
    not do its work.
    """
    if warmup < 0 or iterations < 1:
        raise UsageError(
            f"auto_profile: warmup must be 0 or more and iterations at least 1, not {warmup} and {iterations}"
        )

    def decorate(function: Callable[P, R]) -> Profiled[P, R]:
        if not callable(function):
            raise UsageError(f"auto_profile: expected a function, got {type(function).__name__}")
        title = name or getattr(function, "__qualname__", type(function).__name__).split("<locals>.")[-1]
        late = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(is_late(function) for is_late in late):
            raise UsageError(
                f"auto_profile: {title} is a generator or coroutine function, whose call does no work"
            )
        return Profiled(function, title, enabled, warmup, iterations, repeat)

    return decorate if func is None else decorate(func)


def _cannot_wait() -> bool:
    """In a graph capture or in a compiled region a wait for the GPU is an error."""
    torch = loaded_torch()
    if torch is None:
        return False
    if torch.compiler.is_compiling():
        return True
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _same_random_numbers() -> Any:
    torch = loaded_torch()
    if torch is None:
        return nullcontext()
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    return torch.random.fork_rng(devices=gpus)


@contextmanager
def _state_changes() -> Iterator[list[str]]:
    """Yields a list that is filled when backward() runs or an optimizer steps in the block."""
    changes: list[str] = []
    torch = loaded_torch()
    if torch is None:
        yield changes
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    hook = register_optimizer_step_post_hook(lambda *_: changes.append("an optimizer stepped"))
    backward = torch.autograd.backward  # torch has no hook for the start of a backward pass

    @functools.wraps(backward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        changes.append("backward() ran")
        return backward(*args, **kwargs)

    torch.autograd.backward = watched
    try:
        yield changes
    finally:
        hook.remove()
        if torch.autograd.backward is watched:
            torch.autograd.backward = backward
