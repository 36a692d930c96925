# SPDX-License-Identifier: Apache-2.0
"""layer_norm_gelu_residual: the sum of x and residual is a result too. What every op promises is tested in
test_contract.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from profiling_lab.ops import layer_norm_gelu, layer_norm_gelu_residual
from profiling_lab.ops.layer_norm_gelu import CASE, reference, reference_residual


def with_both_gradients(function: Any, inputs: tuple[Tensor, ...], dy: Tensor, dsum: Tensor) -> list[Tensor]:
    """y, the sum, and the gradients of all inputs where both are used."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    outputs = function(*leaves)
    gradients = torch.autograd.grad(
        outputs, leaves, [g.to(o.dtype) for g, o in zip((dy, dsum), outputs, strict=True)]
    )
    return [*(o.detach() for o in outputs), *gradients]


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype_name", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("d", [1, 37, 512, 768, 1000, 2049, 4096, 16384, 20000])
def test_residual_against_float64(
    device: torch.device, generator: torch.Generator, d: int, dtype_name: str, approximate: Any, within: Any
) -> None:
    if device.type == "cuda" and dtype_name == "float64":
        pytest.skip("no float64 on CUDA")
    dtype = getattr(torch, dtype_name)
    x, weight, bias = CASE.make_inputs((9, d), dtype, device, generator)
    residual, dy, dsum = (torch.randn(9, d, generator=generator).to(device, dtype) for _ in range(3))
    inputs = (x, residual, weight, bias)

    def ours(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return layer_norm_gelu_residual(*tensors, approximate=approximate)

    def theirs(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return reference_residual(*tensors, approximate=approximate)

    got = with_both_gradients(ours, inputs, dy, dsum)
    as_torch = torch.float32 if dtype == torch.float64 else dtype
    own = with_both_gradients(theirs, tuple(t.to(as_torch) for t in inputs), dy, dsum)
    # The truth starts from the sum as it is rounded: that it is, is part of what is asked for.
    total = x + residual
    assert torch.equal(got[1], total)
    doubles = [t.double().requires_grad_() for t in (total, weight, bias)]
    y = reference(*doubles, approximate=approximate)
    dx, dweight, dbias = torch.autograd.grad(y, doubles, dy.double())
    dx = dx + dsum.double()
    for k, (what, truth) in enumerate(
        (
            ("y", y.detach()),
            ("sum", total),
            ("dx", dx),
            ("dresidual", dx),
            ("dweight", dweight),
            ("dbias", dbias),
        )
    ):
        # Where d is 1, dbias is one number, and torch's own error in it may be next to nothing.
        terms = dy.double().abs().sum(0).max().item() if what == "dbias" else 0.0
        within(got[k], truth, own[k], 2 if k < 2 else 3, what, terms)
    assert torch.equal(got[2], got[3])


def test_residual_where_only_one_result_is_used(device: torch.device, generator: torch.Generator) -> None:
    x, weight, bias = CASE.make_inputs((5, 64), torch.float32, device, generator)
    residual, g = (torch.randn(5, 64, generator=generator).to(device) for _ in range(2))
    leaves = [t.requires_grad_() for t in (x, residual, weight, bias)]
    y, total = layer_norm_gelu_residual(*leaves)
    of_y = torch.autograd.grad(y, leaves, g, retain_graph=True)
    inputs = [t.detach().requires_grad_() for t in (total, weight, bias)]
    plain = torch.autograd.grad(layer_norm_gelu(*inputs), inputs, g)
    for a, b in zip(of_y, (plain[0], plain[0], plain[1], plain[2]), strict=True):
        assert torch.equal(a, b)
    of_sum = torch.autograd.grad(total, leaves, g, allow_unused=True)
    assert torch.equal(of_sum[0], g) and torch.equal(of_sum[1], g) and of_sum[2] is None and of_sum[3] is None


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed shapes", "dynamic shapes"])
def test_residual_compiles(device: torch.device, generator: torch.Generator, dynamic: bool) -> None:
    compiled = torch.compile(layer_norm_gelu_residual, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (4, 7):
        x, weight, bias = CASE.make_inputs((rows, 48), torch.float32, device, generator)
        residual, dy, dsum = (torch.randn(rows, 48, generator=generator).to(device) for _ in range(3))
        inputs = (x, residual, weight, bias)
        for a, b in zip(
            with_both_gradients(compiled, inputs, dy, dsum),
            with_both_gradients(layer_norm_gelu_residual, inputs, dy, dsum),
            strict=True,
        ):
            torch.testing.assert_close(a, b)


def test_residual_in_other_layouts_under_autocast_and_vmap(
    device: torch.device, generator: torch.Generator
) -> None:
    x, weight, bias = CASE.make_inputs((6, 64), torch.float32, device, generator)
    wide = torch.randn(6, 128, generator=generator).to(device)
    residual = wide[:, 64:]
    expected = layer_norm_gelu_residual(x, residual.contiguous(), weight, bias)
    for a, b in zip(layer_norm_gelu_residual(x, residual, weight, bias), expected, strict=True):
        assert a.is_contiguous() and torch.equal(a, b)
    by_row = torch.vmap(layer_norm_gelu_residual, in_dims=(0, 0, None, None))(x, residual, weight, bias)
    for a, b in zip(by_row, expected, strict=True):
        torch.testing.assert_close(a, b)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        y, total = layer_norm_gelu_residual(x.bfloat16(), residual, weight, bias)
    assert y.dtype == total.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16"])
def test_residual_where_no_row_is_aligned(
    device: torch.device, generator: torch.Generator, dtype_name: str, within: Any
) -> None:
    """x, residual and both gradients start one element behind a multiple of 16 bytes, rows lie apart."""
    dtype = getattr(torch, dtype_name)
    for d in (512, 4096):
        shifted = [torch.empty(5, d + 3, device=device, dtype=dtype)[:, 1 : d + 1] for _ in range(4)]
        for tensor in shifted:
            tensor.copy_(torch.randn(5, d, generator=generator))
        x, residual, dy, dsum = shifted
        _, weight, bias = CASE.make_inputs((1, d), dtype, device, generator)
        leaves = [t.detach().requires_grad_() for t in (x, residual, weight, bias)]
        outputs = layer_norm_gelu_residual(*leaves)
        got = [*(o.detach() for o in outputs), *torch.autograd.grad(outputs, leaves, (dy, dsum))]
        aligned = with_both_gradients(
            layer_norm_gelu_residual, tuple(t.contiguous() for t in (x, residual, weight, bias)), dy, dsum
        )
        own = with_both_gradients(reference_residual, (x, residual, weight, bias), dy, dsum)
        assert torch.equal(got[1], x + residual)
        for k, what in enumerate(("y", "sum", "dx", "dresidual", "dweight", "dbias")):
            within(got[k], aligned[k].double(), own[k], 2 if k < 2 else 3, f"{what}, d = {d}")


def test_residual_without_rows(device: torch.device) -> None:
    x, residual = torch.empty(2, 0, 3, 24, device=device).unbind()
    leaves = [t.requires_grad_() for t in (x, residual, *torch.ones(2, 24, device=device))]
    y, total = layer_norm_gelu_residual(*leaves)
    assert y.shape == total.shape == x.shape
    dx, dresidual, dweight, dbias = torch.autograd.grad((y.sum() + total.sum()), leaves)
    assert dx.shape == dresidual.shape == x.shape
    assert not dweight.any() and not dbias.any(), "an empty sum is zero"


def test_residual_gradients_have_the_same_bits_in_every_run(
    device: torch.device, generator: torch.Generator
) -> None:
    rows, d = (5000 if device.type == "cuda" else 300), 1024
    x, weight, bias = CASE.make_inputs((rows, d), torch.bfloat16, device, generator)
    residual, dy, dsum = (torch.randn(rows, d, generator=generator).to(x) for _ in range(3))
    runs = [
        with_both_gradients(layer_norm_gelu_residual, (x, residual, weight, bias), dy, dsum) for _ in range(4)
    ]
    for again in runs[1:]:
        for a, b in zip(runs[0], again, strict=True):
            assert torch.equal(a, b)


@pytest.mark.gpu
def test_residual_in_a_graph_and_on_a_side_stream(generator: torch.Generator) -> None:
    """Captured forward and backward, replayed with new values, give what the same calls give one by one."""
    x, weight, bias = CASE.make_inputs((700, 4096), torch.bfloat16, torch.device("cuda"), generator)
    residual, dy, dsum = (torch.randn_like(x) for _ in range(3))
    inputs = (x, residual, weight, bias)

    def step() -> list[Tensor]:
        return with_both_gradients(layer_norm_gelu_residual, inputs, dy, dsum)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        on_the_side = step()
    torch.cuda.current_stream().wait_stream(side)
    for a, b in zip(on_the_side, step(), strict=True):
        assert torch.equal(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(3):
        for tensor in (x, residual, dy, dsum):
            tensor.normal_()
        graph.replay()
        for a, b in zip(captured, step(), strict=True):
            assert torch.equal(a, b)


def test_residual_of_another_shape_is_refused() -> None:
    for device in ("cpu", "meta"):
        x, weight = torch.ones(2, 4, device=device), torch.ones(4, device=device)
        sentence = r"residual has shape \[4\] but x has shape \[2, 4\]"
        with pytest.raises((ValueError, RuntimeError), match=sentence):
            layer_norm_gelu_residual(x, torch.ones(4, device=device), weight)
        with pytest.raises(
            (ValueError, RuntimeError), match="residual has dtype float64 but x has dtype float32"
        ):
            layer_norm_gelu_residual(x, torch.ones(2, 4, device=device).double(), weight)
