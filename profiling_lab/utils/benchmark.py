# SPDX-License-Identifier: Apache-2.0
"""Time one function or model: benchmark_fn and quick_benchmark.

To decide which of several variants is faster, use profiling_lab.measure.compare: it interleaves them and can
begin each call with a cold L2 cache. Here the cache is as the previous call left it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

from profiling_lab.errors import UsageError
from profiling_lab.measure import step_time, time_call
from profiling_lab.measure.calls import wait_for
from profiling_lab.utils.devices import chosen_device
from profiling_lab.utils.result import ProfilingResult


def benchmark_fn(
    fn: Callable[..., object],
    args: Sequence[Any] = (),
    num_warmup: int = 5,
    num_runs: int = 100,
    *,
    device: object = None,
    mode: Literal["latency", "throughput"] = "latency",
) -> float:
    """The mean seconds of one call of fn(*args), over `num_runs` calls after `num_warmup`.

    mode: "latency" waits after each call until its result is complete, "throughput" only after the last, so
    that the launches of a call overlap with the work of the one before. The wait is for the GPU `device`
    (default: the current one of torch, if it has one) and for the JAX arrays in the result, on whatever
    device they are: `fn` must return what it computes.

    Raises UsageError for counts below these, another mode, and a device that torch does not see.
    """
    _check_counts("benchmark_fn", num_warmup, num_runs)
    if mode not in ("latency", "throughput"):
        raise UsageError(f"benchmark_fn: mode must be latency or throughput, not {mode!r}")
    wait_for(args)  # the work that makes them is not part of a call
    for _ in range(num_warmup):  # also decides whether there is a GPU in use
        wait_for(fn(*args))
    per_block = 1 if mode == "latency" else num_runs
    timing = step_time(
        lambda: fn(*args),
        steps_per_block=per_block,
        warmup=0,
        blocks=num_runs // per_block,
        device=chosen_device(device),
    )
    return statistics.fmean(timing.samples_ns) * 1e-9


def quick_benchmark(
    model: Any,
    input_shape: Sequence[int] | None = None,
    num_iterations: int = 100,
    warmup: int = 10,
    *,
    inputs: Sequence[Any] | None = None,
) -> ProfilingResult:
    """Time the forward pass of a torch model, in eval mode and without gradients, on the device it is on.

    The input is random with `input_shape`, of which the first number is the batch, in the type of the
    model's weights; or `inputs`, the arguments of the model as they are, for example token numbers. Each of
    `num_iterations` calls is timed by itself, to the end; then as many in a row (`throughput_ns`). The
    training mode of all parts of the model is restored.

    Raises UsageError for counts below 0 and 1, and unless exactly one of input_shape and inputs is given.
    """
    import torch

    _check_counts("quick_benchmark", warmup, num_iterations)
    if (input_shape is None) == (inputs is None):
        raise UsageError("quick_benchmark: expected either input_shape or inputs, got both or none")
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    device = chosen_device("cpu" if weight is None else weight.device)
    if inputs is None:
        assert input_shape is not None
        dtype = None if weight is None else weight.dtype
        inputs = (torch.randn(tuple(input_shape), dtype=dtype, device=device),)
    tensor = next((value for value in inputs if isinstance(value, torch.Tensor) and value.dim()), None)
    if weight is None and tensor is not None:
        device = chosen_device(tensor.device)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():

            def call() -> object:
                return model(*inputs)

            for _ in range(warmup):
                call()
            if device != "cpu":
                torch.cuda.reset_peak_memory_stats(device)
            calls = [time_call(call, device=device)[1] for _ in range(num_iterations)]
            peak_bytes = torch.cuda.max_memory_allocated(device) if device != "cpu" else None
            row = step_time(call, steps_per_block=num_iterations, warmup=0, blocks=1, device=device)
    finally:
        for module, training in modes:
            module.training = training
    return ProfilingResult.of(
        type(model).__name__,
        device,
        warmup,
        calls,
        peak_memory_bytes=peak_bytes,
        throughput_ns=row.median_ns,
        samples_per_call=None if tensor is None else int(tensor.shape[0]),
    )


def _check_counts(function: str, warmup: int, runs: int) -> None:
    if warmup < 0 or runs < 1:
        raise UsageError(
            f"{function}: expected 0 or more warm-up calls and at least 1 run, got {warmup} and {runs}"
        )
