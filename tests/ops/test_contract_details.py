# SPDX-License-Identifier: Apache-2.0
"""What tools/mutate.py found that no other test holds: defaults, limits and texts, mostly without kernels."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from profiling_lab.ops import (
    OPS,
    HeavyLayer,
    LayerNormGelu,
    _attention_cache,
    explain,
    flash_attention,
    flash_attention_for_sdpa,
    flash_attention_with_cache,
    layer_norm_gelu,
)
from profiling_lab.ops._attention_in_torch import Window, forward_in_torch, window_of
from profiling_lab.ops._calls import is_plain_backward, raise_as_torch_does
from profiling_lab.ops.case import OpCase, Variant
from profiling_lab.ops.flops import FORMULAS

CASES: list[OpCase] = [import_module(f"profiling_lab.ops.{slug}").CASE for slug in OPS]
CUSTOM = [pytest.param(c, v, id=f"{c.slug}-{v.name}") for c in CASES for v in c.variants if v.custom]
NO_LIMIT = 1 << 30
sdpa = torch.nn.functional.scaled_dot_product_attention
attention_fwd = torch.ops.profiling_lab.attention_fwd


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(20261123))


@pytest.fixture
def memory_is_full_of_nan() -> Iterator[None]:
    """torch.empty gives NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


# Windows


@pytest.mark.parametrize(
    ("window", "causal", "expected"),
    [
        (None, False, (-1, -1)),
        (None, True, (-1, 0)),
        (3, False, (3, 3)),
        (3, True, (3, 0)),
        ((4, 2), False, (4, 2)),
        ((4, 2), True, (4, 0)),
        ((4, -9), True, (4, 0)),
        ((4, 0), True, (4, 0)),
        ((-9, 2), False, (-1, 2)),
        ((0, -9), False, (0, -1)),
        ([1, 2], False, (1, 2)),
        (sys.maxsize, False, (NO_LIMIT, NO_LIMIT)),
    ],
)
def test_window_and_causal_as_the_op_takes_them(
    window: Window, causal: bool, expected: tuple[int, int]
) -> None:
    assert window_of(window, causal) == expected


def test_causal_closes_the_right_side_of_a_window() -> None:
    q, k, v = drawn(1, 6, 1, 8), drawn(1, 9, 1, 8).flip(1), drawn(1, 9, 1, 8)
    at = torch.arange(6)[:, None] + 3 - torch.arange(9)[None, :]  # how far a key lies behind its query's own
    scores = (q[0, :, 0] @ k[0, :, 0].T / math.sqrt(8)).masked_fill((at < 0) | (at > 2), -math.inf)
    expected = scores.softmax(-1) @ v[0, :, 0]
    for window in ((2, 5), (2, 0), (2, -1), 2):
        ours = flash_attention(q, k, v, causal=True, window=window)
        torch.testing.assert_close(ours[0, :, 0], expected)


def test_no_window_is_too_wide_for_plain_torch() -> None:
    q = drawn(1, 5, 1, 8)
    expected = forward_in_torch(q, q, q, None, None, None, 0.3, -1, -1, 0.0)
    widest = window_of(sys.maxsize, False)
    torch.testing.assert_close(forward_in_torch(q, q, q, None, None, None, 0.3, *widest, 0.0), expected)


# Modules


def test_heavy_layer_starts_small_and_without_bias(memory_is_full_of_nan: None) -> None:
    module = HeavyLayer(64)
    assert torch.equal(module.b, torch.zeros(64))
    for weight in (module.w1, module.w2, module.w3):
        assert 0.9 / 8 < weight.std().item() < 1.1 / 8
    assert HeavyLayer(0).w1.shape == (0, 0)


def test_layer_norm_gelu_starts_as_the_plain_norm(memory_is_full_of_nan: None) -> None:
    module = LayerNormGelu(24)
    assert torch.equal(module.weight, torch.ones(24)) and torch.equal(module.bias, torch.zeros(24))
    assert LayerNormGelu(24, bias=False).bias is None


# Shapes on a GPU that is not there


def on_cuda(dim: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(1, 4, 2, dim, device="cuda", dtype=dtype)


@pytest.mark.parametrize("dim", [1, 4, 7, 12, 257, 264])
def test_head_dims_that_cuda_has_not(dim: int) -> None:
    with FakeTensorMode():
        x = on_cuda(dim)
        message = f"^flash_attention: head_dim is {dim}, expected a multiple of 8 from 8 to 256 on CUDA$"
        with pytest.raises(ValueError, match=message):
            attention_fwd(x, x, x, None, None, None, 1.0, -1, -1, 0.0, False)


@pytest.mark.parametrize("dim", [8, 16, 40, 64, 256])
def test_head_dims_that_cuda_has(dim: int) -> None:
    with FakeTensorMode():
        x = on_cuda(dim)
        out, lse = attention_fwd(x, x, x, None, None, None, 1.0, -1, -1, 0.0, False)
        assert out.shape == x.shape and lse.shape == (1, 2, 4) and lse.dtype == torch.float32


def test_float32_is_not_for_cuda() -> None:
    with FakeTensorMode():
        x = on_cuda(16, torch.float32)
        with pytest.raises(ValueError, match=r"^flash_attention: dtype float32 is not supported on CUDA; "):
            attention_fwd(x, x, x, None, None, None, 1.0, -1, -1, 0.0, False)


def test_which_caches_have_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def is_hopper(device: int) -> bool:
        asked.append(device)
        return device == 1

    def has_kernel(device: str, **facts: Any) -> bool:
        for name, value in {"_HAS_CUDA_KERNELS": True, "_IS_PORTABLE": False, **facts}.items():
            monkeypatch.setattr(_attention_cache, name, value)
        with FakeTensorMode():
            return _attention_cache.has_hopper_kernels(torch.empty(1, device=device))

    monkeypatch.setattr(_attention_cache, "_is_hopper", is_hopper)
    assert has_kernel("cuda:1") and not has_kernel("cuda:0") and asked == [1, 0]
    assert not has_kernel("cuda:1", _HAS_CUDA_KERNELS=False) and not has_kernel("cuda:1", _IS_PORTABLE=True)
    assert not has_kernel("cpu") and asked == [1, 0]


# Shapes without data get the checks of real ones


def said(call: Any, tensors: tuple[Tensor, ...]) -> Any:
    """The error, or what the result looks like."""
    try:
        y = call(*tensors)
    except (TypeError, ValueError, RuntimeError) as error:
        return type(error), str(error)
    return y.shape, y.dtype, y.stride()


def others(t: Tensor) -> list[Tensor]:
    longer = [t.new_zeros([n + (d == at) for d, n in enumerate(t.shape)]) for at in range(t.dim())]
    return [*longer, t[None], t[0], t.double(), t.to(torch.bfloat16)]


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_meta_tensors_get_the_words_of_real_ones(case: OpCase, variant: Variant) -> None:
    inputs = case.make_inputs(case.small_shape, torch.float32, torch.device("cpu"), torch.Generator())
    refused = 0
    for i, tensor in enumerate(inputs):
        for other in others(tensor):
            real = (*inputs[:i], other, *inputs[i + 1 :])
            expected = said(variant.call, real)
            assert said(variant.call, tuple(t.to("meta") for t in real)) == expected
            refused += expected[0] is ValueError
    assert refused >= 2 * len(inputs)


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (torch.zeros(2, dtype=torch.float64), "sink has dtype float64, expected float32"),
        (torch.zeros(3), r"sink has shape \[3\] but q has 2 heads"),
        (torch.zeros(1, 2), r"sink has shape \[1, 2\] but q has 2 heads"),
    ],
)
def test_the_sinks_checks_of_the_op_itself(sink: Tensor, message: str) -> None:
    q = torch.zeros(1, 3, 2, 8)
    for device in ("cpu", "meta"):
        x, s = q.to(device), sink.to(device)
        with pytest.raises(ValueError, match=f"^flash_attention: {message}$"):
            attention_fwd(x, x, x, s, None, None, 1.0, -1, -1, 0.0, False)


def test_the_ops_own_check_of_rows_and_of_gradients() -> None:
    rest = (None, None, None, 1.0, -1, -1, 0.0, False)
    most = torch.empty(1, (1 << 30) - 1, 0, 1)  # without heads it needs no memory
    assert attention_fwd(most, most, most, *rest)[0].shape == most.shape
    x = torch.empty(1, 1 << 30, 0, 1)
    with pytest.raises(ValueError, match=r"^flash_attention: 1073741824 rows, expected fewer than 2\^30$"):
        attention_fwd(x, x, x, *rest)
    x = torch.zeros(1, 3, 2, 8)
    out, lse = attention_fwd(x, x, x, *rest)
    backward = torch.ops.profiling_lab.attention_bwd
    for dout, o, name in ((out.double(), out, "dout"), (out, out.double(), "out")):
        with pytest.raises(
            ValueError, match=f"^flash_attention: {name} has dtype float64 but q has dtype float32$"
        ):
            backward(dout, None, x, x, x, o, lse, *rest)


def test_the_most_heads_and_batches() -> None:
    for shape in ((1, 1, 1 << 30, 1), (1 << 30, 1, 1, 1), (1, 1, (1 << 31) - 1, 1)):
        x = torch.empty(shape, device="meta")
        assert flash_attention(x, x, x).shape == shape
    for shape in ((1, 0, (1 << 31) - 1, 1), ((1 << 31) - 1, 0, 1, 1)):  # the op's own check; no memory needed
        x = torch.empty(shape)
        assert flash_attention(x, x, x).shape == shape
    for shape, what in (((1, 1, 1 << 31, 1), "heads"), ((1 << 31, 1, 1, 1), "batches")):
        x = torch.empty(shape, device="meta")
        with pytest.raises(
            ValueError, match=rf"^flash_attention: {1 << 31} {what}, expected fewer than 2\^31$"
        ):
            flash_attention(x, x, x)


# Calls


def test_which_backward_is_plain() -> None:
    dy = torch.ones(2)
    assert not is_plain_backward(dy)  # with gradients on, of second order
    with torch.no_grad():
        assert is_plain_backward(dy) is True
        assert not is_plain_backward(dy.to("meta")) and not is_plain_backward(torch.nn.Parameter(dy))
        assert not is_plain_backward(None)
        with torch.autograd.forward_ad.dual_level():
            assert not is_plain_backward(dy)
        with FakeTensorMode():
            assert not is_plain_backward(dy)


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (RuntimeError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: an illegal address"), False),
        (RuntimeError("the host is out of memory"), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_only_the_gpus_out_of_memory_is_renamed(error: Exception, is_memory: bool) -> None:
    if not is_memory:
        raise_as_torch_does(error)
        return
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory$"):
        raise_as_torch_does(error)


def test_gradients_per_sample_with_offsets() -> None:
    """Of each sample's own tensors in one packed batch of two sequences."""
    q, k, v, dout = (drawn(3, 7, 2, 8) for _ in range(4))
    cu = torch.tensor([0, 3, 7], dtype=torch.int32)

    def loss(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> Tensor:
        return (flash_attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True) * dout).sum()

    gradient = torch.func.grad(loss, argnums=(0, 1, 2))
    each = [gradient(*(t[i] for t in (q, k, v, dout))) for i in range(3)]
    together = torch.func.vmap(gradient)(q, k, v, dout)
    for ours, expected in zip(together, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(ours, torch.stack(expected))


@pytest.mark.parametrize("paged", [False, True])
def test_flops_of_a_cache_are_those_of_its_keys(paged: bool) -> None:
    q, new = torch.zeros(2, 3, 4, 8), torch.zeros(2, 5, 2, 8)
    cache = torch.zeros(6, 16, 2, 8) if paged else torch.zeros(2, 64, 2, 8)
    table = torch.zeros(2, 4, dtype=torch.int32) if paged else None
    lengths = torch.tensor([20, 7], dtype=torch.int32)
    of = partial(FORMULAS["cached_attention"], q, cache, cache)
    pair = 2 * 4 * (8 + 8)  # of one row and one key: two products over four heads
    assert of(lengths, table, None, None) == 3 * pair * (20 + 7)
    assert of(lengths, table, new, new) == 3 * pair * (20 + 5 + 7 + 5)
    assert of(lengths.to("meta"), table, new, new) == 3 * pair * 2 * 64  # not known: all the room


def test_flops_of_offsets_that_are_not_known() -> None:
    q = torch.zeros(20, 4, 8)
    for cu, sequences in ((torch.zeros(4, device="meta"), 3), (torch.zeros(1, device="meta"), 1)):
        assert FORMULAS["attention_fwd"](q, q, q, None, cu, cu) == 4 * 4 * 8 * (20 * 20 // sequences)
    with FakeTensorMode():
        cu = torch.zeros(4, dtype=torch.int32)
    assert FORMULAS["attention_fwd"](q, q, q, None, cu, cu) == 4 * 4 * 8 * (20 * 20 // 3)


@pytest.mark.parametrize("window", [(-1, -1), (2, 0), (1, 1)])
def test_plain_torch_and_the_op_agree_on_packed_rows(window: tuple[int, int]) -> None:
    """With rows behind the last offset, an empty sequence, and a sink, which does not count behind it."""
    q, k, v = drawn(11, 4, 8), drawn(10, 2, 8), drawn(10, 2, 8) * 2
    cu_q, cu_k = (torch.tensor(o, dtype=torch.int32) for o in ([0, 3, 3, 9], [0, 4, 6, 9]))
    for sink in (None, torch.tensor([0.5, -1, 0, 2], dtype=torch.float64)):
        arguments = (q, k, v, sink, cu_q, cu_k, 0.4, *window, 3.0, False)
        out, lse = forward_in_torch(*arguments)
        assert lse[:, 9:].isneginf().all() and lse[:, :9].isfinite().any() and not out[9:].any()
        torch.testing.assert_close((out, lse), tuple(attention_fwd(*arguments)))


@pytest.mark.parametrize(
    ("rows", "dtype", "allow_tf32", "kept"),
    [
        (3, torch.float32, True, ((3, 8), (3, 8))),
        (8, torch.bfloat16, False, ((8, 8), (8, 8))),
        (9, torch.float32, False, ((8, 8), (8, 8))),
        (9, torch.float32, True, ((8, 8), (0,))),
        (9, torch.bfloat16, True, ((8, 8), (8, 8))),
        (0, torch.float32, False, ((0,), (0,))),
    ],
)
def test_what_heavy_layer_keeps_on_a_gpu(
    rows: int, dtype: torch.dtype, allow_tf32: bool, kept: tuple[tuple[int, ...], ...]
) -> None:
    keeping = torch.ops.profiling_lab.heavy_layer_fast_keeping
    with FakeTensorMode():
        w = torch.empty(8, 8, device="cuda", dtype=dtype)
        x, b = w.new_empty(rows, 8), w.new_empty(8)
        y, *found = keeping(x, w, w, w, b, allow_tf32)
    assert y.shape == x.shape and tuple(tuple(t.shape) for t in found) == kept


@pytest.mark.parametrize("other", [torch.float64, "meta"], ids=str)
def test_torch_itself_refuses_several_devices_or_dtypes(other: Any) -> None:
    q = drawn(1, 2, 5, 8, dtype=torch.float32)
    for tensors in ((q.to(other), q, q), (q, q.to(other), q), (q, q, q.to(other))):
        with flash_attention_for_sdpa(), pytest.raises(RuntimeError) as ours:
            sdpa(*tensors)
        with pytest.raises(RuntimeError) as torchs:
            sdpa(*tensors)
        assert str(ours.value) == str(torchs.value)


@pytest.mark.parametrize("scale", [torch.tensor(0.5), torch.tensor(0.5, requires_grad=True)], ids=str)
def test_torch_itself_answers_a_tensor_for_scale(scale: Tensor) -> None:
    q = drawn(1, 2, 5, 8)
    with flash_attention_for_sdpa():
        ours = said(lambda x: sdpa(x, x, x, scale=scale), (q,))
    assert ours == said(lambda x: sdpa(x, x, x, scale=scale), (q,))


def test_a_batch_of_rows_alone_is_one_call() -> None:
    calls: list[Any] = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func)
            return func(*args, **(kwargs or {}))

    x, w = drawn(4, 3, 8), drawn(8)
    one = torch.ops.profiling_lab.layer_norm_gelu.default
    for in_dims, count in (((0, None), 1), ((None, 0), 3)):
        tensors = (x, w) if in_dims[0] == 0 else (x, torch.stack([w, w, w]))
        with Calls():
            torch.func.vmap(layer_norm_gelu, in_dims=in_dims)(*tensors)
        assert calls.count(one) == count
        calls.clear()


def test_a_small_softcap_in_a_cache() -> None:
    q, k, v = drawn(1, 1, 2, 8), drawn(1, 6, 2, 8).flip(1), drawn(1, 6, 2, 8)
    lengths = torch.tensor([6], dtype=torch.int32)
    scores = 0.7 * torch.tanh(torch.einsum("hd,khd->hk", q[0, 0], k[0]) / math.sqrt(8) / 0.7)
    expected = torch.einsum("hk,khd->hd", scores.softmax(-1), v[0])
    ours, lse = flash_attention_with_cache(q, k, v, cache_seqlens=lengths, softcap=0.7, return_lse=True)
    torch.testing.assert_close(ours[0, 0], expected)
    torch.testing.assert_close(lse[0, :, 0], scores.logsumexp(-1))


def test_a_cache_without_keys() -> None:
    q, cache = drawn(2, 1, 2, 8), torch.full((2, 6, 2, 8), math.nan, dtype=torch.float64)
    lengths = torch.zeros(2, dtype=torch.int32)
    out, lse = flash_attention_with_cache(q, cache, cache, cache_seqlens=lengths, return_lse=True)
    assert torch.equal(out, torch.zeros_like(q)) and lse.isneginf().all()


def test_what_stands_between_python_and_the_kernel() -> None:
    class Mine(Tensor):
        pass

    x = torch.ones(2)
    assert explain._asks((x, None, torch.nn.Parameter(x))) == ""
    assert explain._asks((x, x.as_subclass(Mine), None)) == "tensors of class Mine"
    assert explain._asks((x.to("meta"),)) == "meta tensors"
    with FakeTensorMode():
        assert explain._asks((x,)) == "a TorchDispatchMode"
    with torch.autocast("cpu"):
        assert explain._asks((x,)) == "autocast"
    with torch.autograd.forward_ad.dual_level():
        assert explain._asks((x,)) == "forward-mode differentiation"


@pytest.mark.parametrize(
    ("cu_q", "cu_k", "message"),
    [
        ([1, 3, 5], [0, 3, 5], "cu_seqlens_q starts with 1, expected 0"),
        ([0, 3, 5], [-1, 3, 5], "cu_seqlens_k starts with -1, expected 0"),
        ([0, 4, 3], [0, 3, 5], "cu_seqlens_q decreases"),
        ([0, 3, 5], [0, 3, 6], "cu_seqlens_k ends with 6 but there are 5 rows"),
    ],
)
def test_offsets_that_are_wrong(cu_q: list[int], cu_k: list[int], message: str) -> None:
    x = torch.zeros(5, 1, 8)
    offsets = (torch.tensor(cu, dtype=torch.int32) for cu in (cu_q, cu_k))
    with pytest.raises(ValueError, match=f"^flash_attention: {message}$"):
        attention_fwd(x, x, x, None, *offsets, 1.0, -1, -1, 0.0, False)


def test_a_sink_with_gaps() -> None:
    q = drawn(1, 3, 2, 8)
    with pytest.raises(ValueError, match=r"^flash_attention: sink is not contiguous$"):
        attention_fwd(q, q, q, torch.zeros(2, 2, dtype=q.dtype)[:, 0], None, None, 1.0, -1, -1, 0.0, False)
    sink = drawn(2, 2)[:, 0]
    torch.testing.assert_close(
        flash_attention(q, q, q, sink=sink), flash_attention(q, q, q, sink=sink.clone())
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.slug)
def test_every_result_has_its_shape_and_dtype_without_data(case: OpCase, dtype: str) -> None:
    """Of all ops of the dispatcher, with the results that only their backward reads."""
    numbers = getattr(torch, dtype), torch.device("cpu"), torch.Generator()
    for name, arguments in case.dispatcher_calls(case.make_inputs(case.small_shape, *numbers)):
        op = getattr(torch.ops.profiling_lab, name)
        of_meta = tuple(a.to("meta") if isinstance(a, Tensor) else a for a in arguments)
        real, fake = (r if isinstance(r, (tuple, list)) else (r,) for r in (op(*arguments), op(*of_meta)))
        assert [(t.shape, t.dtype) for t in fake] == [(t.shape, t.dtype) for t in real], name


def test_workers_share_the_cores() -> None:
    """tests/conftest.py says how many threads each may use, which torch has to hear before it is imported."""
    threads = torch.get_num_threads()
    assert threads <= int(os.environ.get("OMP_NUM_THREADS", threads))
