# SPDX-License-Identifier: Apache-2.0
"""flash_attention's options at the ends of their ranges, where a wrong answer would make no noise."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from profiling_lab.ops import OPS
from profiling_lab.ops import _registration as registration
from profiling_lab.ops.attention import flash_attention, flash_attention_for_sdpa, reference
from profiling_lab.ops.case import OpCase
from profiling_lab.ops.ladder_attention import ladder_attention
from profiling_lab.ops.layer_norm_gelu import layer_norm_gelu

CASES: list[OpCase] = [import_module(f"profiling_lab.ops.{slug}").CASE for slug in OPS]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def drawn(generator: torch.Generator, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Eighty rows: two blocks of queries and of keys on the CPU."""
    return tuple(
        torch.randn(2, 80, h, 16, generator=generator, dtype=torch.float64).to(dtype) for h in (4, 2, 2)
    )


@pytest.mark.parametrize("sides", [(1, 1), (1, 0), (0, 1)], ids=["both", "left", "right"])
@pytest.mark.parametrize("limit", [sys.maxsize, sys.maxsize + 1, 1 << 31, 80])
def test_a_window_wider_than_the_rows_is_none(
    limit: int, sides: tuple[int, int], generator: torch.Generator, gradients: Any
) -> None:
    inputs = drawn(generator)
    dy = torch.randn_like(inputs[0])
    window = tuple(limit if side else -1 for side in sides)
    ours = gradients(lambda *x: flash_attention(*x, window=window), inputs, dy)
    for a, b in zip(ours, gradients(flash_attention, inputs, dy), strict=True):
        assert torch.equal(a, b)


def test_the_op_itself_takes_every_window(generator: torch.Generator) -> None:
    inputs = drawn(generator)
    rest = (None, None, None, 0.25)
    for left, right in ((sys.maxsize, sys.maxsize), (-sys.maxsize, sys.maxsize), (sys.maxsize, -1)):
        out, _ = torch.ops.profiling_lab.attention_fwd(*inputs, *rest, left, right, 0.0, False)
        assert torch.equal(out, flash_attention(*inputs))


@pytest.mark.parametrize("softcap", [1e-2, 1.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_and_large_soft_caps(
    dtype: torch.dtype, softcap: float, generator: torch.Generator, within: Any, gradients: Any
) -> None:
    """A large cap multiplies tanh of small numbers: an error of an ulp of 1 would become one of 0.1."""
    if softcap > 1e3 and dtype == torch.float16:
        pytest.skip("plain torch, which sets the bound, cannot multiply by it")
    inputs = tuple(3 * x for x in drawn(generator, dtype))
    dy = torch.randn(inputs[0].shape, generator=generator, dtype=torch.float64).to(dtype)

    def theirs(*x: Tensor) -> Any:
        return reference(*x, softcap=softcap)

    truth = gradients(theirs, tuple(x.double() for x in inputs), dy)
    as_torch = torch.float32 if dtype == torch.float64 else dtype
    yardstick = gradients(theirs, tuple(x.to(as_torch) for x in inputs), dy)
    ours = gradients(lambda *x: flash_attention(*x, softcap=softcap), inputs, dy)
    for i, (one, true, torchs) in enumerate(zip(ours, truth, yardstick, strict=True)):
        within(one, true, torchs, 3, f"result {i}")


def test_an_option_that_requires_a_gradient_is_refused(generator: torch.Generator) -> None:
    """It would get none: the op takes numbers."""
    q, k, v = drawn(generator)
    number = torch.tensor(0.25, requires_grad=True)
    sentence = "is a tensor that requires a gradient, which the op has not; expected a number$"
    with pytest.raises(ValueError, match=f"^flash_attention: scale {sentence}"):
        flash_attention(q, k, v, scale=number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^flash_attention: softcap {sentence}"):
        flash_attention(q, k, v, softcap=number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^ladder_attention: scale {sentence}"):
        ladder_attention(q, q, q, scale=number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^layer_norm_gelu: eps {sentence}"):
        layer_norm_gelu(q, q[0, 0, 0], eps=number)  # type: ignore[arg-type]
    with torch.no_grad():
        assert torch.equal(flash_attention(q, k, v, scale=number), flash_attention(q, k, v, scale=0.25))  # type: ignore[arg-type]


def test_scale_counts(generator: torch.Generator) -> None:
    inputs = drawn(generator)
    for scale in (0.0, -0.5, 2.0):
        torch.testing.assert_close(flash_attention(*inputs, scale=scale), reference(*inputs, scale=scale))
        q, k, v = inputs[0][:, :, :2], *inputs[1:]
        torch.testing.assert_close(ladder_attention(q, k, v, scale=scale), reference(q, k, v, scale=scale))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("shape", "what"), [((1 << 31, 1, 1, 1), "batches"), ((1, 1, 1 << 31, 1), "heads")])
def test_sizes_beyond_32_bits_are_refused(shape: tuple[int, ...], what: str, device: str) -> None:
    """The kernels count these in 32 bits; before any memory is asked for."""
    x = torch.zeros((), dtype=torch.float16, device=device).expand(shape)
    with pytest.raises(ValueError, match=rf"^flash_attention: 2147483648 {what}, expected fewer than 2\^31$"):
        flash_attention(x, x, x)


def bad_calls() -> list[Any]:
    def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    q, k, cu = x(2, 5, 4, 8), x(2, 6, 2, 8), torch.tensor([0, 2, 5], dtype=torch.int32)
    calls: dict[str, Any] = {
        "dimensions": (x(5, 4, 8), k, k, {}),
        "v like k": (q, k, x(2, 7, 2, 8), {}),
        "head_dim": (q, x(2, 6, 2, 4), x(2, 6, 2, 4), {}),
        "batch": (q, k[:1], k[:1], {}),
        "heads": (q, x(2, 6, 3, 8), x(2, 6, 3, 8), {}),
        "no heads of k": (q, x(2, 6, 0, 8), x(2, 6, 0, 8), {}),
        "head_dim 0": (q[..., :0], k[..., :0], k[..., :0], {}),
        "head_dim 0 of v": (q, k, k[..., :0], {}),
        "keys and values": (q, k, k[:, :5], {}),
        "dtype": (q.long(), k.long(), k.long(), {}),
        "dtypes": (q, k.double(), k, {}),
        "sink": (q, k, k, {"sink": x(3)}),
        "sink of two dimensions": (q, k, k, {"sink": x(4, 1)}),
        "offsets of one side": (q[0], k[0], k[0], {"cu_seqlens_q": cu}),
        "offsets and dimensions": (q, k, k, {"cu_seqlens_q": cu, "cu_seqlens_k": cu}),
        "offsets of another length": (q[0], k[0], k[0], {"cu_seqlens_q": cu, "cu_seqlens_k": cu[:2]}),
        "offsets of another dtype": (q[0], k[0], k[0], {"cu_seqlens_q": cu.long(), "cu_seqlens_k": cu}),
        "offsets of two dimensions": (q[0], k[0], k[0], {"cu_seqlens_q": cu[None], "cu_seqlens_k": cu}),
        "softcap": (q, k, k, {"softcap": -1.5}),
    }
    return [pytest.param(*call, id=name) for name, call in calls.items()]


@pytest.mark.parametrize(("q", "k", "v", "options"), bad_calls())
def test_meta_tensors_are_checked_as_real_ones(
    q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]
) -> None:
    sentences = []
    for device in ("cpu", "meta"):
        there = {n: o.to(device) if isinstance(o, Tensor) else o for n, o in options.items()}
        with pytest.raises(ValueError, match=r"^flash_attention: ") as raised:
            flash_attention(*(x.to(device) for x in (q, k, v)), **there)
        sentences.append(str(raised.value))
    assert sentences[0] == sentences[1]


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        ([(5, 4, 8)] * 3, {}),
        ([(2, 5, 4, 8), (2, 5, 4, 8), (2, 6, 4, 8)], {}),
        ([(2, 5, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8)], {}),
        ([(2, 5, 4, 8)] * 3, {"rung": "top"}),
    ],
    ids=["dimensions", "v like k", "heads", "rung"],
)
def test_meta_tensors_of_ladder_attention(shapes: list[tuple[int, ...]], options: dict[str, Any]) -> None:
    sentences = []
    for device in ("cpu", "meta"):
        with pytest.raises(ValueError, match=r"^ladder_attention: ") as raised:
            ladder_attention(*(torch.zeros(shape, device=device) for shape in shapes), **options)
        sentences.append(str(raised.value))
    assert sentences[0] == sentences[1]


# Errors of torch

NO_MEMORY = "CUDA out of memory: no float32 tensor of shape [9] could be allocated on cuda:0"


@pytest.fixture(scope="module")
def op_without_memory() -> registration.Op:
    """An op whose forward and backward raise what the library raises then; negative x has memory at first."""

    def forward(x: Tensor) -> Tensor:
        if x.sum() > 0:
            raise RuntimeError(NO_MEMORY)
        return -x

    def backward(dy: Tensor) -> Tensor:
        raise RuntimeError(NO_MEMORY if dy.sum() > 0 else "another error")

    registration.define("test_without_memory(Tensor x) -> Tensor", forward)
    registration.define("test_without_memory_backward(Tensor dy) -> Tensor", backward)
    common: Any = {"slug": "an_op", "fake": torch.empty_like, "in_torch": torch.neg, "calls_torch": True}
    slope = registration.BackwardOp(name="test_without_memory_backward", differentiable="dy", **common)
    return registration.Op(
        name="test_without_memory",
        saved="x",
        backward_op=slope,
        backward=lambda call, saved, options, grads: (call(*grads),),
        **common,
    )


def test_running_out_of_memory_keeps_its_type(op_without_memory: registration.Op) -> None:
    """In the forward and in the backward; every other error stays what it is."""
    x = torch.ones(3, requires_grad=True)
    for given in (x, x.detach()):
        with pytest.raises(RuntimeError) as raised:
            op_without_memory.way(given)(given)
        with pytest.raises(torch.OutOfMemoryError, match="could be allocated"):
            op_without_memory.explain(raised.value, given)
    y = op_without_memory.way(-x)(-x)
    with pytest.raises(torch.OutOfMemoryError, match="could be allocated"):
        y.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="another error") as raised:
        y.sum().neg().backward()
    assert type(raised.value) is RuntimeError
    op_without_memory.explain(raised.value, x)
    op_without_memory.explain(ValueError(NO_MEMORY), x)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_an_error_of_a_call_is_explained(case: OpCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each public function asks its op for a better error."""
    inputs = case.make_inputs(case.small_shape, torch.float32, torch.device("cpu"), torch.Generator())

    def failing(*_: Any) -> Any:
        raise RuntimeError(NO_MEMORY)

    module = sys.modules[f"profiling_lab.ops.{case.slug}"]
    ops = [value for value in vars(module).values() if isinstance(value, registration.Op)]
    ways = [op.way for op in ops]
    try:
        for op in ops:
            object.__setattr__(op, "way", lambda *_: failing)
        for variant in case.variants:
            if variant.custom:
                with pytest.raises(torch.OutOfMemoryError, match="could be allocated"):
                    variant.call(*inputs)
    finally:
        for op, way in zip(ops, ways, strict=True):
            object.__setattr__(op, "way", way)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_tensors_that_are_missing_or_elsewhere(case: OpCase) -> None:
    inputs = case.make_inputs(case.small_shape, torch.float32, torch.device("cpu"), torch.Generator())
    names = {"attention": "k", "ladder_attention": "k", "heavy_layer": "w1", "layer_norm_gelu": "weight"}
    call = case.variants[0].call
    for i in (0, 1):
        with pytest.raises(TypeError, match=f"^{case.name} expected tensors, got NoneType$"):
            call(*inputs[:i], None, *inputs[i + 1 :])
    with pytest.raises(ValueError, match=f"^{case.name}: {names[case.slug]} is on meta but . is on cpu$"):
        call(inputs[0], inputs[1].to("meta"), *inputs[2:])
    with pytest.raises(ValueError, match=f"^{case.name}: {names[case.slug]} is on cpu but . is on meta$"):
        call(inputs[0].to("meta"), *inputs[1:])


def narrow_values(generator: torch.Generator, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    q, k, v = drawn(generator, dtype)
    return q, k, v[..., :8]


def test_values_of_their_own_head_dim_are_values_with_zeros_behind(
    generator: torch.Generator, gradients: Any
) -> None:
    q, k, v = narrow_values(generator)
    padded = torch.cat([v, torch.zeros_like(v)], -1)
    dout = torch.randn(2, 80, 4, 8, generator=generator, dtype=torch.float64)
    ours = gradients(lambda *x: flash_attention(*x, causal=True), (q, k, v), dout)
    same = gradients(lambda *x: flash_attention(*x, causal=True)[..., :8], (q, k, padded), dout)
    assert ours[0].shape == dout.shape and ours[0].is_contiguous()
    for a, b in zip(ours, same, strict=True):
        torch.testing.assert_close(a, b[..., : a.shape[-1]])


def test_values_of_their_own_head_dim_under_torchs_transforms(generator: torch.Generator) -> None:
    q, k, v = narrow_values(generator)
    op, options = torch.ops.profiling_lab.attention_fwd.default, (None, None, None, 0.25, -1, 0, 0.0, False)
    torch.library.opcheck(op, (*(x.requires_grad_() for x in (q, k, v)), *options))

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attention(q[None], k[None], v[None], causal=True).square().sum()

    alone = [torch.func.grad(loss, (0, 1, 2))(*(x[i] for x in (q, k, v))) for i in range(2)]
    together = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)))(q, k, v)
    for a, b in zip(together, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(a, torch.stack(b))
    few = [x[:1, :5].detach().requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradgradcheck(lambda *x: flash_attention(*x, causal=True), few)
    compiled = torch.compile(flash_attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), flash_attention(q, k, v))


def test_values_of_their_own_head_dim_for_sdpa_and_its_flops(generator: torch.Generator) -> None:
    q, k, v = (x.transpose(1, 2) for x in narrow_values(generator))
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    with flash_attention_for_sdpa(), FlopCounterMode(display=False) as ours:
        out = F.scaled_dot_product_attention(q, k, v)
    with FlopCounterMode(display=False) as theirs:
        same = F.scaled_dot_product_attention(q, k, v)
    assert ours.get_total_flops() == 2 * 2 * 4 * 80 * 80 * (16 + 8) and out.shape == same.shape
    assert [str(op) for op in ours.get_flop_counts()["Global"]] == ["profiling_lab.attention_fwd"]
    assert theirs.get_total_flops() in (0, ours.get_total_flops())
    torch.testing.assert_close(out, same)
