# SPDX-License-Identifier: Apache-2.0
"""heavy_layer's "fast" on the GPU: which kernels run where, their results, streams and captures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from profiling_lab.ops import heavy_layer
from profiling_lab.ops.heavy_layer import CASE, reference


def inputs_of(*shape: int, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    return CASE.make_inputs(shape, dtype, torch.device(device), torch.Generator().manual_seed(7))


SMALL_SHAPES = [
    (4096, 512),
    (1000, 200),
    (300, 136),
    (129, 128),
    (2048, 1024),
    (128, 128),
    (1, 512),
    (70, 264),
]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SMALL_SHAPES, ids=str)
@pytest.mark.parametrize("precision", ["tf32", "bfloat16", "float16", "float32"])
def test_small_products_against_float64(
    shape: tuple[int, int], precision: str, within: Any, gradients: Any
) -> None:
    """About a wave of tiles: products of our own, the last of the forward with bias and tanh. The backward of
    float32 has two lanes.
    """
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    dtype = torch.float32 if precision == "tf32" else getattr(torch, precision)
    inputs = inputs_of(*shape, dtype=dtype, device="cuda")
    dy = torch.randn(shape, generator=torch.Generator().manual_seed(9)).to("cuda", dtype)
    truth = gradients(reference, tuple(t.double() for t in inputs), dy)
    yardstick = gradients(reference, inputs, dy)
    ours, again = (gradients(heavy_layer, inputs, dy) for _ in range(2))
    for i, (a, b, c, d) in enumerate(zip(ours, truth, yardstick, again, strict=True)):
        within(a, b, c, 2 if i == 0 else 3, f"result {i}")
        assert torch.equal(a, d), f"result {i} has other bits the second time"


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(500, 96), (4096, 512)], ids=str)
def test_tf32_operands_are_rounded_and_not_cut(shape: tuple[int, int]) -> None:
    """Cut, each product is a little too small: in db of a loss that depends on Y that adds up to 6 to 17
    times the error of torch's own products.
    """
    torch.backends.cuda.matmul.allow_tf32 = True
    inputs = inputs_of(*shape, dtype=torch.float32, device="cuda")

    def db(call: Any, *tensors: Tensor) -> Tensor:
        b = tensors[4].requires_grad_()
        return torch.autograd.grad(call(*tensors).square().sum(), b)[0].double()

    truth = db(reference, *(t.double() for t in inputs))
    ours, own = ((db(call, *inputs) - truth).norm().item() for call in (heavy_layer, reference))
    assert ours <= 2 * own


def kernels_of(call: Any) -> list[str]:
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        call()
        torch.cuda.synchronize()
    return [e.name for e in recorded.events() if e.device_type == torch.autograd.DeviceType.CUDA]


@pytest.mark.gpu
@pytest.mark.keeps_cupti
def test_which_kernel_ends_the_forward() -> None:
    """Hopper, a wave of tiles and 16 bits or TF32: fused. Float32 multiplied as such, or more tiles: not."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the fused kernel is Hopper's")
    for shape, dtype, tf32, fused in (
        ((4096, 512), torch.bfloat16, False, True),
        ((4096, 512), torch.float32, True, True),
        ((4096, 512), torch.float32, False, False),
        ((8192, 4096), torch.bfloat16, False, False),
        ((4096, 500), torch.bfloat16, False, False),  # rows that do not start at multiples of 16 bytes
        ((64, 512), torch.float32, False, False),  # fewer rows than columns: the chain
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        inputs = inputs_of(*shape, dtype=dtype, device="cuda")
        with torch.no_grad():
            names = kernels_of(lambda inputs=inputs: heavy_layer(*inputs))
        assert any("product_tanh" in name for name in names) == fused, (shape, dtype, tf32, names)
        assert any("bias_tanh" in name for name in names) != fused
        folds_in_fp32 = shape == (4096, 512) and dtype == torch.float32 and not tf32
        assert sum("square_product" in name for name in names) == 2 * folds_in_fp32


@pytest.mark.gpu
@pytest.mark.keeps_cupti
def test_which_kernels_the_backward_has() -> None:
    """Where products are small they are ours, and in 16 bits all of a chain's backward is four kernels."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the 16-bit products are Hopper's")
    for shape, dtype, ours, others in (
        ((4096, 512), torch.bfloat16, {"tanh_backward": 1, "products_kernel": 3}, True),
        ((4096, 512), torch.float32, {"tanh_backward": 1, "sum_chunks": 1}, True),
        ((64, 512), torch.bfloat16, {"tanh_backward": 1, "products_kernel": 3}, False),  # the chain
        ((4096, 500), torch.bfloat16, {"tanh_backward": 1, "products_kernel": 0}, True),  # rows not aligned
        ((2048, 1024), torch.bfloat16, {"tanh_backward": 1, "products_kernel": 0}, True),
    ):
        inputs = inputs_of(*shape, dtype=dtype, device="cuda")
        dy = torch.ones_like(inputs[0])
        y, *kept = torch.ops.profiling_lab.heavy_layer_fast_keeping(*inputs)
        arguments = (dy, *inputs, y, False, *kept)
        names = kernels_of(lambda a=arguments: torch.ops.profiling_lab.heavy_layer_backward(*a))
        for name, count in ours.items():
            assert sum(name in kernel for kernel in names) == count, (shape, dtype, name, names)
        assert (len(names) > sum(ours.values())) == others, (shape, dtype, names)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [300, 70])
def test_saved_tensors_may_have_any_layout(rows: int) -> None:
    """W2 W3 and W1 W2 W3, or the chain's first two products."""
    inputs = inputs_of(rows, 136, dtype=torch.bfloat16, device="cuda")
    dy = torch.randn(rows, 136, generator=torch.Generator().manual_seed(9)).to("cuda", torch.bfloat16)
    y, first, second = torch.ops.profiling_lab.heavy_layer_fast_keeping(*inputs)
    backward = torch.ops.profiling_lab.heavy_layer_backward
    expected = backward(dy, *inputs, y, False, first, second)
    odd = torch.empty(second.numel() + 1, device="cuda", dtype=torch.bfloat16)[1:].view(second.shape)
    ways = {
        "nothing": (None, None),
        "by rows": (first, second.contiguous()),
        "transposed": (first, second.t().contiguous().t()),
        "both transposed": (first.t().contiguous().t(), second.t().contiguous().t()),
        "not aligned": (first, odd.copy_(second)),
    }
    for way, kept in ways.items():
        for a, b in zip(backward(dy, *inputs, y, False, *kept), expected, strict=True):
            assert torch.equal(a, b), way
    turned = tuple(w.t().contiguous().t() for w in inputs[1:4])
    for a, b in zip(
        backward(dy, inputs[0], *turned, inputs[4], y, False, first, second), expected, strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.gpu
def test_first_backward_of_a_thread_may_be_captured() -> None:
    """Its second stream is made then, in the middle of the capture."""
    import threading

    inputs = inputs_of(300, 64, dtype=torch.float32, device="cuda")
    with torch.no_grad():
        y = heavy_layer(*inputs)
    dy = torch.ones_like(y)
    backward = torch.ops.profiling_lab.heavy_layer_backward
    expected = backward(dy, *inputs, y)
    found: list[Any] = []

    def capture() -> None:
        torch.mm(inputs[0].t(), inputs[0])  # cuBLAS itself must not be new to the thread
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = backward(dy, *inputs, y)
        graph.replay()
        torch.cuda.synchronize()
        found.append([tensor.clone() for tensor in outputs])

    thread = threading.Thread(target=capture)
    thread.start()
    thread.join()
    assert found and all(torch.equal(a, b) for a, b in zip(found[0], expected, strict=True))


@pytest.mark.gpu
def test_threads_on_streams_of_their_own() -> None:
    import threading

    types = (torch.bfloat16, torch.float32, torch.bfloat16, torch.float32)
    many = [inputs_of(500, 64 * (i + 1), dtype=types[i], device="cuda") for i in range(4)]
    expected = [gradients_of_sum(inputs) for inputs in many]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                ours = gradients_of_sum(many[index])
                torch.cuda.current_stream().synchronize()
                if not all(torch.equal(a, b) for a, b in zip(ours, expected[index], strict=True)):
                    wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(many))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def gradients_of_sum(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    y = heavy_layer(*leaves)
    return torch.autograd.grad(y, leaves, torch.ones_like(y))
