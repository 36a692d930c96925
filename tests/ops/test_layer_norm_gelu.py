# SPDX-License-Identifier: Apache-2.0
"""What is special about layer_norm_gelu: the normal distribution's tail, rows far from zero, long
and odd rows. What every op promises is tested in test_contract.py.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from needs import needs_gpu_memory
from torch import Tensor

from profiling_lab.ops import LayerNormGelu, layer_norm_gelu
from profiling_lab.ops.layer_norm_gelu import CASE, reference


def exact(x: Tensor, weight: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    """In float64 and without 1 + erf or 1 + tanh, which cancel to zero in the tail even in float64."""
    z = torch.nn.functional.layer_norm(x.double(), x.shape[-1:], weight.double(), bias.double())
    if approximate == "tanh":
        return z * torch.sigmoid(math.sqrt(8 / math.pi) * (z + 0.044715 * z**3))
    return 0.5 * z * torch.special.erfc(-z / math.sqrt(2))


def with_gradients(function: Any, inputs: tuple[Tensor, ...], dy: Tensor) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))]


def worst_by_binade(y: Tensor, truth: Tensor) -> dict[tuple[int, int], float]:
    """Largest error relative to the result, in ulps of y's dtype, for each sign and binade of the result."""
    truth = truth.double().flatten()
    error = ((y.double().flatten() - truth) / truth).abs().where(truth != 0, 0) / torch.finfo(y.dtype).eps
    lowest = math.frexp(torch.finfo(y.dtype).tiny)[1]
    binades = torch.frexp(truth.abs())[1]
    first = int(binades.min())
    key = 2 * (binades - first).long() + (truth > 0)
    largest = torch.zeros(int(key.max()) + 1).to(error).scatter_reduce(0, key, error, "amax").tolist()
    counts = key[truth != 0].bincount(minlength=len(largest)).tolist()
    # Not subnormal, and enough of them for a maximum to mean something.
    return {
        (1 if k % 2 else -1, first + k // 2): largest[k]
        for k, count in enumerate(counts)
        if first + k // 2 > lowest and count >= 200
    }


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16", "float16"])
def test_error_by_binade_is_at_most_eagers(
    device: torch.device, generator: torch.Generator, dtype_name: str, approximate: Any
) -> None:
    """In every binade of the result, the negative tail included, and far better where eager computes 1 +
    erf.
    """
    dtype = getattr(torch, dtype_name)
    d = 4096
    x, weight, bias = CASE.make_inputs((1024 if device.type == "cuda" else 64, d), dtype, device, generator)
    weight = torch.linspace(0.2, 5, d, device=device).to(dtype)  # z to +-15: the whole range of the dtype
    truth = exact(x, weight, bias, approximate)
    ours = worst_by_binade(layer_norm_gelu(x, weight, bias, approximate=approximate), truth)
    eager = worst_by_binade(reference(x, weight, bias, approximate=approximate), truth)
    assert min(b for _, b in ours) < -10, "the tail is not in the test"
    table = "\n".join(f"{s:+d} 2^{b:<4} ours {ours[s, b]:.3g} eager {eager[s, b]:.3g}" for s, b in ours)
    # Both are the largest of many random errors: a tenth of it is chance.
    worse = [key for key in ours if ours[key] > max(1.1 * eager[key], eager[key] + 0.5)]
    assert not worse, f"errors in ulps by sign and binade:\n{table}\nworse: {worse}"
    for (sign, binade), error in ours.items():
        # z from -5 to -12: what remains is the result's own sensitivity, z^2 times the relative error of z.
        if sign < 0 and -110 < binade < -30:
            # For bf16 the polynomial in fp16; eager's error is 128 or 2^23 there.
            assert error < {"bfloat16": 20.0, "float32": 400.0}[dtype_name], table


@pytest.mark.parametrize("offset", [0.0, 100.0, -3.0e4])
def test_a_row_far_from_zero_does_not_cancel(
    device: torch.device, generator: torch.Generator, offset: float
) -> None:
    for d in (37, 768, 4096, 20000):
        x = torch.randn(4, d, generator=generator).to(device) + offset
        weight, bias = torch.ones(d, device=device), torch.zeros(d, device=device)
        error = (layer_norm_gelu(x, weight, bias).double() - exact(x, weight, bias)).abs().max().item()
        assert error < 4e-6, f"d = {d}: {error}"


@pytest.mark.parametrize("dtype_name", ["bfloat16", "float16"])
def test_rows_near_and_far_from_zero_lie_together(
    device: torch.device, generator: torch.Generator, dtype_name: str
) -> None:
    """Packed rows share a block: those far from zero get a second pass, the others keep what they have."""
    dtype = getattr(torch, dtype_name)
    eps = torch.finfo(dtype).eps
    for d in (33, 64, 136, 257, 1001):
        offset = torch.tensor([0.0, 0.0, 2.0, -40.0, 0.0, 900.0]).repeat(60)[:333, None]
        x = (
            (torch.randn(333, d, generator=generator) * (1 + offset.abs() * 4 * eps) + offset)
            .to(dtype)
            .to(device)
        )
        weight, bias = (torch.full((d,), v, dtype=dtype, device=device) for v in (1.0, 0.0))
        truth = exact(x, weight, bias)
        error = (layer_norm_gelu(x, weight, bias).double() - truth).abs() / (truth.abs() + 0.02)
        assert error.max().item() < eps, f"d = {d}: {(error.amax(1) / eps).tolist()[:6]} in eps"


@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16", "float16"])
def test_a_constant_row_gives_gelu_of_the_bias(device: torch.device, dtype_name: str) -> None:
    dtype = getattr(torch, dtype_name)
    for d in (37, 1000, 4096, 16384, 20000):
        weight = torch.full((d,), 2.0, device=device, dtype=dtype)
        bias = torch.linspace(-3, 3, d, device=device).to(dtype)
        x = torch.full((3, d), 1000.1, device=device).to(dtype)
        y = layer_norm_gelu(x, weight, bias)
        expected = torch.nn.functional.gelu(bias.double()).expand(3, d)
        torch.testing.assert_close(y.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


WIDTHS = [
    pytest.param(1, id="one column"),
    pytest.param(8, id="one vector"),
    *(pytest.param(d, id=f"odd: {d}") for d in (31, 33, 1025, 2047, 4097, 16385, 65537)),
    pytest.param(136, id="17 vectors of 16 bits, packed"),
    pytest.param(264, id="33 vectors of 16 bits: one more than a warp"),
    pytest.param(512, id="a warp, 2 vectors of 16 bits each"),
    pytest.param(768, id="a warp, 3 vectors of 16 bits each"),
    pytest.param(1016, id="a warp, some lanes idle"),
    pytest.param(1023, id="odd, packed but for fp32's backward"),
    pytest.param(1536, id="two warps, 3 vectors each"),
    pytest.param(2046, id="not odd, of 16 bits the longest that are packed both ways"),
    pytest.param(2049, id="odd, of 16 bits packed forward and shifted backward"),
    pytest.param(4100, id="fp32 vectors, 16 bits none"),
    pytest.param(5120, id="5 warps"),
    pytest.param(8192, id="most that the backward holds in registers"),
    pytest.param(8200, id="one vector more than that"),
    pytest.param(12288, id="24 warps or 12"),
    pytest.param(16384, id="most that the forward holds in registers"),
    pytest.param(16392, id="one vector more than that, of 16 bits"),
    pytest.param(20480, id="a cluster of four blocks, in the backward of 32 bits eight"),
    pytest.param(32768, id="a cluster of two blocks forward, four backward"),
    pytest.param(65536, id="a cluster of four blocks forward, eight backward"),
    pytest.param(131072, id="very long"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16", "float16"])
def test_every_way_to_cut_a_row(
    generator: torch.Generator, dtype_name: str, d: int, within: Any, poison: Any
) -> None:
    """Few rows and many; aligned, and shifted by one element so that no vector access is possible."""
    dtype = getattr(torch, dtype_name)
    device = torch.device("cuda")
    for rows in (1, 4001 if d < 2304 else 13):
        x, weight, bias = CASE.make_inputs((rows, d), dtype, device, generator)
        dy = torch.randn(rows, d, generator=generator).to(device, dtype)
        doubles = tuple(t.double() for t in (x, weight, bias))
        truth = with_gradients(reference, doubles, dy)
        eager = with_gradients(reference, (x, weight, bias), dy)
        shifted = torch.empty(rows * d + 1, device=device, dtype=dtype)[1:].view(rows, d).copy_(x)
        for name, same in (("aligned", x), ("shifted", shifted)):
            poison(x)
            leaves = [t.detach().requires_grad_() for t in (same, weight, bias)]
            y = layer_norm_gelu(*leaves)
            ours = [y.detach(), *torch.autograd.grad(y, leaves, dy)]
            for k, what in enumerate(("y", "dx", "dweight", "dbias")):
                within(ours[k], truth[k], eager[k], 2 if k == 0 else 3, f"{what}, {rows} rows, {name}")


def test_strided_rows_are_not_copied(device: torch.device, generator: torch.Generator) -> None:
    """Every third row of a larger tensor, and a slice of each row: the same bits as from a contiguous
    copy.
    """
    whole = torch.randn(30, 700, generator=generator).to(device)
    weight, bias = torch.randn(2, 512, generator=generator).to(device)
    dy = torch.randn(10, 600, generator=generator).to(device)[:, 8:520]
    view = whole[::3, 16:528]
    for a, b in zip(
        with_gradients(lambda *t: layer_norm_gelu(*t), (view, weight, bias), dy),
        with_gradients(lambda *t: layer_norm_gelu(*t), (view.contiguous(), weight, bias), dy.contiguous()),
        strict=True,
    ):
        assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("d", [33, 64, 257, 1025])
@pytest.mark.parametrize("dtype_name", ["bfloat16", "float16"])
def test_packed_rows_in_tanh_form(
    generator: torch.Generator, dtype_name: str, d: int, within: Any, poison: Any
) -> None:
    dtype, device = getattr(torch, dtype_name), torch.device("cuda")
    x, weight, bias = CASE.make_inputs((1031, d), dtype, device, generator)
    dy = torch.randn(1031, d, generator=generator).to(device, dtype)
    truth, eager = (
        with_gradients(partial(reference, approximate="tanh"), inputs, dy)
        for inputs in (tuple(t.double() for t in (x, weight, bias)), (x, weight, bias))
    )
    poison(x)
    ours = with_gradients(partial(layer_norm_gelu, approximate="tanh"), (x, weight, bias), dy)
    for k, what in enumerate(("y", "dx", "dweight", "dbias")):
        within(ours[k], truth[k], eager[k], 2 if k == 0 else 3, what)


@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16"])
def test_weight_gradients_have_the_same_bits_in_every_run(
    device: torch.device, generator: torch.Generator, dtype_name: str
) -> None:
    rows = 5000 if device.type == "cuda" else 300
    for d in (256, 1000, 2048):
        dtype = getattr(torch, dtype_name)
        inputs = CASE.make_inputs((rows, d), dtype, device, generator)
        dy = torch.randn(rows, d, generator=generator).to(device, dtype)
        first = with_gradients(layer_norm_gelu, inputs, dy)
        for _ in range(20 if device.type == "cuda" else 3):
            for a, b in zip(first, with_gradients(layer_norm_gelu, inputs, dy), strict=True):
                assert torch.equal(a, b)


def test_number_of_threads_does_not_change_the_bits(generator: torch.Generator) -> None:
    inputs = CASE.make_inputs((500, 96), torch.float32, torch.device("cpu"), generator)
    dy = torch.randn(500, 96, generator=generator)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(with_gradients(layer_norm_gelu, inputs, dy))
    finally:
        torch.set_num_threads(before)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_without_bias(device: torch.device, generator: torch.Generator, approximate: Any) -> None:
    for d in (37, 512, 20000):
        x, weight, _ = CASE.make_inputs((5, d), torch.float32, device, generator)
        dy = torch.randn(5, d, generator=generator).to(device)
        zero = torch.zeros(d, device=device)
        ours = with_gradients(lambda x, w: layer_norm_gelu(x, w, None, 1e-3, approximate), (x, weight), dy)
        same = with_gradients(
            lambda x, w, zero=zero: layer_norm_gelu(x, w, zero, 1e-3, approximate), (x, weight), dy
        )
        for a, b in zip(ours, same, strict=True):
            assert torch.equal(a, b)
    module = LayerNormGelu(8, bias=False)
    assert module.bias is None and set(module.state_dict()) == {"weight"}


def test_nan_stays_in_its_row(device: torch.device, generator: torch.Generator) -> None:
    for d in (64, 4096, 20000):
        x = torch.randn(4, d, generator=generator).to(device)
        x[2, d // 2] = float("nan")
        y = layer_norm_gelu(x, torch.ones(d, device=device), torch.zeros(d, device=device))
        assert y[2].isnan().all() and not y[[0, 1, 3]].isnan().any()


@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16", "float16"])
def test_far_beyond_the_tail(device: torch.device, dtype_name: str, within: Any) -> None:
    """z up to 1000: the polynomials of the tail hold to 13, and must not matter beyond."""
    x, _, bias = CASE.make_inputs((3, 2048), getattr(torch, dtype_name), device, torch.Generator())
    weight = torch.linspace(10, 300, 2048, device=device).to(x.dtype)
    within(layer_norm_gelu(x, weight, bias), exact(x, weight, bias), reference(x, weight, bias), 1)


def test_autocast_leaves_x_and_aligns_the_rest(device: torch.device, generator: torch.Generator) -> None:
    module = LayerNormGelu(64, device=device)
    x = torch.randn(3, 64, generator=generator).to(device, torch.bfloat16)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert module(x).dtype == torch.bfloat16
        assert module(x.float()).dtype == torch.float32, "the op needs no lower precision to be fast"
    with pytest.raises(ValueError, match="weight has dtype float32 but x has dtype bfloat16"):
        module(x)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"weight": torch.ones(5)}, "weight has 5 elements but x has last dimension 4"),
        ({"bias": torch.ones(4, 1)}, r"bias has shape \[4, 1\], expected one dimension of 4 elements"),
        ({"bias": torch.ones(4).double()}, "bias has dtype float64 but x has dtype float32"),
        ({"x": torch.ones(())}, "x has no dimensions, expected at least one"),
        ({"x": torch.ones(3, 0), "weight": torch.ones(0), "bias": None}, "an empty row has no mean"),
        ({"approximate": "erf"}, "approximate is 'erf', expected 'none' or 'tanh'"),
    ],
)
def test_one_sentence_for_each_mistake(change: dict[str, Any], sentence: str) -> None:
    """In eager mode from C++, on meta tensors from the fake: the same words."""
    arguments: dict[str, Any] = {"x": torch.ones(2, 4), "weight": torch.ones(4), "bias": torch.ones(4)}
    arguments |= change
    for device in ("cpu", "meta"):
        moved = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in arguments.items()}
        with pytest.raises((ValueError, RuntimeError), match=sentence):
            layer_norm_gelu(**moved)


def test_int_input_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype int64 is not supported on the CPU"):
        layer_norm_gelu(torch.ones(2, 4).long(), torch.ones(4).long())


@pytest.mark.gpu
def test_more_than_2_to_the_31_elements(within: Any) -> None:
    """Rows at both ends of a tensor that 32-bit offsets cannot reach."""
    needs_gpu_memory(24)
    d, rows = 4096, (1 << 31) // 4096 + 3
    device = torch.device("cuda")
    x = torch.empty(rows, d, device=device, dtype=torch.bfloat16)
    generator = torch.Generator(device).manual_seed(5)
    for part in x.split(1 << 16):
        part.normal_(generator=generator)
    weight, bias = torch.ones(d, device=device).bfloat16(), torch.zeros(d, device=device).bfloat16()
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    y = layer_norm_gelu(*leaves)
    ends = torch.tensor([0, 1, rows - 2, rows - 1], device=device)
    few = x.detach()[ends]
    within(
        y.detach()[ends],
        exact(few, weight.detach(), bias.detach()),
        reference(few, weight.detach(), bias.detach()),
        2,
    )
    dx, _, dbias = torch.autograd.grad(y, leaves, torch.ones_like(y))
    dy = torch.ones(4, d, device=device, dtype=torch.bfloat16)
    truth = with_gradients(reference, (few.double(), weight.double(), bias.double()), dy)
    eager = with_gradients(reference, (few, weight, bias), dy)
    within(dx[ends], truth[1], eager[1], 3)
    # gelu' of a standard normal has mean Phi-averaged 1/2 by symmetry: dbias counts the rows.
    assert (dbias.double() / rows).sub(0.5).abs().max().item() < 0.01


def test_a_plain_call_and_the_dispatcher_agree(device: torch.device, generator: torch.Generator) -> None:
    """Plain calls go past the dispatcher's autograd, which is there for compilers and transforms."""
    inputs = CASE.make_inputs((7, 96), torch.float32, device, generator)
    dy = torch.randn(7, 96, generator=generator).to(device)
    op = torch.ops.profiling_lab.layer_norm_gelu
    plain = with_gradients(layer_norm_gelu, inputs, dy)
    dispatched = with_gradients(lambda *t: op(*t, 1e-5, "none")[0], inputs, dy)
    for a, b in zip(plain, dispatched, strict=True):
        assert torch.equal(a, b)
    leaf = inputs[0].detach().requires_grad_()
    assert layer_norm_gelu(leaf, *inputs[1:]).requires_grad
    with torch.no_grad():
        assert not layer_norm_gelu(leaf, *inputs[1:]).requires_grad
    with torch.inference_mode():
        assert layer_norm_gelu(leaf, *inputs[1:]).is_inference()
