# SPDX-License-Identifier: Apache-2.0
"""What every op promises on the GPU beyond right values: streams, graphs, devices, and no hidden waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

import pytest
import torch
from needs import needs_gpu_memory
from torch import Tensor

from profiling_lab.ops import OPS
from profiling_lab.ops.case import OpCase, Variant

CASES: list[OpCase] = [import_module(f"profiling_lab.ops.{slug}").CASE for slug in OPS]
CUSTOM = [pytest.param(c, v, id=f"{c.slug}-{v.name}") for c in CASES for v in c.variants if v.custom]
pytestmark = pytest.mark.gpu

A_WHILE = 40_000_000  # cycles: some 20 ms on today's GPUs, far longer than anything here takes


def inputs_of(case: OpCase, device: str = "cuda", seed: int = 5) -> tuple[Tensor, ...]:
    """Inputs of the case's second largest tested shape, in its first CUDA dtype."""
    shape = sorted((s.shape for s in case.test_shapes), key=lambda s: torch.Size(s).numel())[-2]
    dtype = getattr(torch, case.cuda_dtypes[0])
    return case.make_inputs(shape, dtype, torch.device(device), torch.Generator().manual_seed(seed))


def forward_backward(call: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    wanted = tuple(t.detach().requires_grad_() for t in inputs)
    y = call(*wanted)
    return (y.detach(), *torch.autograd.grad(y, wanted, torch.ones_like(y)))


@pytest.fixture
def forbid_waiting() -> Iterator[Callable[[], None]]:
    """Call it to make every synchronisation inside torch an error, until the test ends."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_does_not_wait_for_the_gpu(
    case: OpCase, variant: Variant, forbid_waiting: Callable[[], None]
) -> None:
    inputs = inputs_of(case)
    forward_backward(variant.call, inputs)  # loads the kernels
    done = torch.cuda.Event()
    for patience in (1, 10, 100):  # a busy machine may take longer to launch than the GPU is kept busy
        torch.cuda.synchronize()
        forbid_waiting()
        torch.cuda._sleep(patience * A_WHILE)
        forward_backward(variant.call, inputs)
        done.record()
        if not done.query():
            return
        torch.cuda.set_sync_debug_mode("default")
    pytest.fail("the calls returned after the GPU was done: something waited")


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_side_stream_behind_a_long_producer(case: OpCase, variant: Variant) -> None:
    inputs = inputs_of(case)
    expected = forward_backward(variant.call, inputs)
    stream = torch.cuda.Stream()
    for _ in range(5):
        late = tuple(torch.full_like(t, float("nan")) for t in inputs)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(A_WHILE)
            for target, source in zip(late, inputs, strict=True):
                target.copy_(source)
            ours = forward_backward(variant.call, late)
        stream.synchronize()
        for a, b in zip(ours, expected, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_two_streams_at_once(case: OpCase, variant: Variant) -> None:
    many = [inputs_of(case, seed=seed) for seed in (1, 2)]
    expected = [forward_backward(variant.call, inputs) for inputs in many]
    streams = [torch.cuda.Stream() for _ in many]
    torch.cuda.synchronize()
    results: list[list[tuple[Tensor, ...]]] = [[], []]
    for _ in range(10):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[i].append(forward_backward(variant.call, many[i]))
    torch.cuda.synchronize()
    for i in range(2):
        for result in results[i]:
            for a, b in zip(result, expected[i], strict=True):
                assert torch.equal(a, b)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_cuda_graph_replays_with_new_inputs(case: OpCase, variant: Variant) -> None:
    first, second = inputs_of(case, seed=1), inputs_of(case, seed=2)
    static = tuple(t.clone() for t in first)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            forward_backward(variant.call, static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = forward_backward(variant.call, static)
    for inputs in (first, second, first):
        for target, source in zip(static, inputs, strict=True):
            target.copy_(source)
        for tensor in outputs:
            tensor.fill_(float("nan"))
        graph.replay()
        for a, b in zip(outputs, forward_backward(variant.call, inputs), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_compile_reduce_overhead(case: OpCase, variant: Variant) -> None:
    torch._dynamo.reset()
    inputs = inputs_of(case)
    expected = forward_backward(variant.call, inputs)
    compiled = torch.compile(variant.call, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        ours = tuple(t.clone() for t in forward_backward(compiled, inputs))
        for a, b in zip(ours, expected, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_uninitialised_memory_is_never_read(case: OpCase, variant: Variant) -> None:
    """In deterministic mode torch fills new tensors with NaN if asked, scratch memory and outputs alike."""
    inputs = inputs_of(case)
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        results = []
        for fill in (False, True):
            torch.utils.deterministic.fill_uninitialized_memory = fill
            results.append(forward_backward(variant.call, inputs))
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]
    for without, filled in zip(*results, strict=True):
        assert torch.equal(without, filled)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_row_strides_beyond_32_bits(case: OpCase, variant: Variant) -> None:
    needs_gpu_memory(16)
    first, *rest = case.make_inputs(
        (2, *next(s.shape for s in case.test_shapes if len(s.shape) > 1 and min(s.shape) > 1)[1:]),
        getattr(torch, case.cuda_dtypes[-1]),
        torch.device("cuda"),
        torch.Generator().manual_seed(3),
    )
    step = (1 << 31) + 8
    memory = torch.empty(step + first[0].numel(), dtype=first.dtype, device="cuda")
    far = memory.as_strided(first.shape, (step, *first.stride()[1:]))
    far.copy_(first)
    assert torch.equal(variant.call(far, *rest), variant.call(first, *rest))


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_cuda_agrees_with_the_cpu(case: OpCase, variant: Variant) -> None:
    inputs = inputs_of(case)
    on_gpu = forward_backward(variant.call, inputs)
    on_cpu = forward_backward(variant.call, tuple(t.cpu() for t in inputs))
    relative = 3e-2 if inputs[0].dtype.itemsize == 2 else 1e-4
    for a, b in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=relative, atol=relative * b.abs().max().item())


@pytest.mark.keeps_cupti
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_a_profile_shows_the_op_and_its_kernels(case: OpCase) -> None:
    from torch.profiler import ProfilerActivity, profile

    inputs = inputs_of(case)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        forward_backward(case.variants[0].call, inputs)
        torch.cuda.synchronize()
    names = {event.name for event in recorded.events()}
    assert any(name.startswith(f"profiling_lab::{case.slug}") for name in names), names
    assert any("plab::" in name for name in names), names


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_tensors_on_two_devices_are_refused(case: OpCase, variant: Variant) -> None:
    first, *rest = inputs_of(case)
    with pytest.raises(ValueError, match=r"is on cpu but \w+ is on cuda:0$"):
        variant.call(first, *(t.cpu() for t in rest))


@pytest.mark.multigpu
@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_runs_on_the_device_of_its_tensors(case: OpCase, variant: Variant) -> None:
    expected = forward_backward(variant.call, inputs_of(case))
    with torch.cuda.device(0):
        ours = forward_backward(variant.call, inputs_of(case, "cuda:1"))
        assert torch.cuda.current_device() == 0
    for a, b in zip(ours, expected, strict=True):
        assert a.device.index == 1
        assert torch.equal(a.cpu(), b.cpu())
