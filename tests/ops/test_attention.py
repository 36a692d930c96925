# SPDX-License-Identifier: Apache-2.0
"""flash_attention against the formulas in float64: values, gradients, masks, lengths, layouts, and torch's
machinery."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from attention_oracle import check_against_float64, results, tensors

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from profiling_lab.ops.attention import (  # noqa: E402
    FlashSelfAttention,
    attention_flash,
    flash_attention,
    flash_attention_for_sdpa,
)

CPU, CUDA = pytest.param("cpu", id="cpu"), pytest.param("cuda", id="cuda", marks=pytest.mark.gpu)
DEVICES = [CPU, CUDA]


LENGTHS = [
    pytest.param(1, 1, id="one-row-one-key"),
    pytest.param(5, 9, id="smaller-than-a-tile"),
    pytest.param(64, 128, id="whole-tiles"),
    pytest.param(129, 127, id="one-over-one-under-a-tile"),
    pytest.param(200, 3, id="first-rows-see-nothing-under-a-causal-mask"),
    pytest.param(1, 300, id="decoding-one-row"),
    pytest.param(113, 203, id="odd-lengths"),
]
MASKS = [
    pytest.param({}, id="full"),
    pytest.param({"causal": True}, id="causal"),
    pytest.param({"window": (37, 5)}, id="window"),
    pytest.param({"window": 0}, id="window-of-one-key"),
    pytest.param({"window": (100, -1)}, id="left-window"),
    pytest.param({"causal": True, "window": (40, 9)}, id="causal-window"),
    pytest.param({"softcap": 4.0}, id="softcap"),
    pytest.param({"scale": -0.3}, id="negative-scale"),
    pytest.param({"scale": 0.0}, id="scale-zero"),
]


@pytest.mark.parametrize("options", MASKS)
@pytest.mark.parametrize(("rows", "keys"), LENGTHS)
@pytest.mark.parametrize("device", DEVICES)
def test_masks_and_lengths(device: str, rows: int, keys: int, options: dict[str, Any]) -> None:
    dtype = torch.float64 if device == "cpu" else torch.bfloat16
    check_against_float64(tensors(device, dtype, 2, rows, keys, 4, 2, 64), **options)


@pytest.mark.parametrize("dim", [1, 7, 8, 33, 40, 64, 72, 96, 112, 128, 192, 256])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("device", DEVICES)
def test_head_dims_and_dtypes(device: str, dtype: str, dim: int) -> None:
    if device == "cuda" and (dim % 8 or dtype in ("float32", "float64")):
        inputs = tensors(device, getattr(torch, dtype), 1, 4, 4, 1, 1, dim)
        with pytest.raises(ValueError, match=r"head_dim is|not supported on CUDA"):
            flash_attention(*inputs)
        return
    for causal in (False, True):
        check_against_float64(tensors(device, getattr(torch, dtype), 1, 130, 70, 2, 1, dim), causal=causal)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (8, 8), (8, 2), (7, 1)])
@pytest.mark.parametrize("device", DEVICES)
def test_grouped_queries_and_sink(device: str, heads: int, kv_heads: int) -> None:
    dtype = torch.float64 if device == "cpu" else torch.float16
    inputs = tensors(device, dtype, 2, 70, 150, heads, kv_heads, 32)
    sink = torch.linspace(-2, 3, heads, dtype=torch.float64, device=device)
    sink[0] = -math.inf
    if heads > 1:
        check_against_float64(inputs, sink=sink, causal=True)
    check_against_float64(inputs, causal=True)


@pytest.mark.parametrize("device", DEVICES)
def test_a_sink_of_minus_infinity_is_no_sink(device: str) -> None:
    q, k, v = tensors(device, torch.bfloat16, 1, 40, 90, 3, 3, 64)
    sink = torch.full((3,), -math.inf, device=device)
    plain, with_sink = (flash_attention(q, k, v, causal=True, sink=s, return_lse=True) for s in (None, sink))
    assert all(torch.equal(a, b) for a, b in zip(plain, with_sink, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (30, 9)}])
def test_variable_lengths_equal_separate_calls(device: str, options: dict[str, Any]) -> None:
    """Packed sequences, empty ones too; NaN after the last one must not change a result."""
    rows, keys = [5, 0, 130, 257, 1, 64, 0, 100], [9, 7, 130, 100, 0, 64, 0, 213]
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    generator = torch.Generator().manual_seed(3)

    def packed(lengths: list[int], heads: int) -> tuple[Any, Any]:
        cu = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
        values = torch.randn(sum(lengths) + 11, heads, 72, generator=generator)
        values[sum(lengths) :] = math.nan
        return values.to(device=device, dtype=dtype), cu

    (q, cu_q), (k, cu_k) = packed(rows, 4), packed(keys, 2)
    (v, _), (dout, _) = packed(keys, 2), packed(rows, 4)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out, lse = flash_attention(*inputs, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True, **options)
    grads = torch.autograd.grad(out, inputs, dout)
    for tensor, lengths in zip((out, *grads), (rows, rows, keys, keys), strict=True):
        assert torch.equal(tensor[sum(lengths) :], torch.zeros_like(tensor[sum(lengths) :]))
    assert bool((lse[:, sum(rows) :] == -math.inf).all())

    # In 16 bits the two calls may take different kernels, whose sums round differently.
    near = {"rtol": 2e-2, "atol": 5e-3} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    q_first = k_first = 0
    for n_q, n_k in zip(rows, keys, strict=True):
        parts = [q[q_first : q_first + n_q], k[k_first : k_first + n_k], v[k_first : k_first + n_k]]
        alone = [x.detach()[None].requires_grad_() for x in parts]
        expected, expected_lse = flash_attention(*alone, return_lse=True, **options)
        expected_grads = torch.autograd.grad(expected, alone, dout[None, q_first : q_first + n_q])
        ours = [out[q_first : q_first + n_q], *(g[a : a + n] for g, a, n in
                zip(grads, (q_first, k_first, k_first), (n_q, n_k, n_k), strict=True))]  # fmt: skip
        for a, b in zip(ours, (expected, *expected_grads), strict=True):
            torch.testing.assert_close(a, b[0], **near)
        torch.testing.assert_close(lse[:, q_first : q_first + n_q], expected_lse[0])
        q_first, k_first = q_first + n_q, k_first + n_k


@pytest.mark.parametrize("device", DEVICES)
def test_any_layout_gives_the_same_bits(device: str) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (x.detach() for x in tensors(device, dtype, 2, 70, 70, 4, 4, 64))
    expected = flash_attention(q, k, v, causal=True)
    packed = torch.stack([q, k, v], dim=2)
    shifted = torch.empty(q.numel() + 1, dtype=dtype, device=device)[1:].view_as(q).copy_(q)
    layouts = {
        "heads before rows": [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)],
        "one packed tensor": [packed[:, :, i] for i in range(3)],
        "last dimension strided": [x.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2) for x in (q, k, v)],
        "not 16-byte aligned": [shifted, k, v],
    }
    for name, inputs in layouts.items():
        assert torch.equal(flash_attention(*inputs, causal=True), expected), name
    assert torch.equal(
        attention_flash(*(x.transpose(1, 2) for x in (q, k, v)), causal=True), expected.transpose(1, 2)
    )


@pytest.mark.parametrize("device", DEVICES)
def test_expanded_tensors_are_read_in_place(device: str) -> None:
    """A stride of 0 along batch, heads or rows: the same kernels as for a copy, so the same bits."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (x.detach() for x in tensors(device, dtype, 2, 70, 90, 4, 4, 64))
    for inputs in (
        [q[:1].expand(2, -1, -1, -1), k, v],
        [q, k[:, :, :1].expand(-1, -1, 4, -1), v[:, :, :1].expand(-1, -1, 4, -1)],
        [q, k[:1].expand(2, -1, -1, -1), v],
        [q[:, :1].expand(-1, 70, -1, -1), k, v[:, :1].expand(-1, 90, -1, -1)],
    ):
        dense = [x.contiguous().requires_grad_() for x in inputs]
        leaves = [x.detach().requires_grad_() for x in inputs]
        for a, b in zip(
            results(flash_attention, leaves, causal=True, deterministic=True),
            results(flash_attention, dense, causal=True, deterministic=True),
            strict=True,
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("device", DEVICES)
def test_expanded_rows_of_a_packed_batch_are_read_in_place(device: str) -> None:
    """Sequences of one query, or one key, over and over: rows of stride 0 under cu_seqlens."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (x.detach()[0] for x in tensors(device, dtype, 1, 70, 70, 4, 4, 64))
    offsets = torch.tensor([0, 33, 70], dtype=torch.int32, device=device)
    options = {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "causal": True, "deterministic": True}
    for inputs in ([q[:1].expand(70, -1, -1), k, v], [q, k[:1].expand(70, -1, -1), v]):
        dense = [x.contiguous().requires_grad_() for x in inputs]
        leaves = [x.detach().requires_grad_() for x in inputs]
        for a, b in zip(
            results(flash_attention, leaves, **options),
            results(flash_attention, dense, **options),
            strict=True,
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("device", DEVICES)
def test_expanded_output_gradient(device: str) -> None:
    inputs = tensors(device, torch.float32 if device == "cpu" else torch.float16, 1, 50, 60, 2, 2, 64)
    summed = torch.autograd.grad(flash_attention(*inputs).sum(), inputs)  # a gradient of stride 0
    out = flash_attention(*inputs)
    dense = torch.autograd.grad(out, inputs, torch.ones_like(out))
    assert all(torch.equal(a, b) for a, b in zip(summed, dense, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("magnitude", [30.0, 1e4])
def test_large_logits_stay_finite(device: str, magnitude: float) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = tensors(device, dtype, 1, 100, 100, 2, 2, 64)
    out = flash_attention(q * magnitude, k, v, causal=True)
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(bool(torch.isfinite(x).all()) for x in (out, *grads))


@pytest.mark.parametrize("device", DEVICES)
def test_scores_far_below_zero(device: str) -> None:
    """What earlier keys left behind those of a last, partial block is no score, and would be the largest."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, _, v = (x.detach() for x in tensors(device, dtype, 1, 9, 74, 1, 1, 64))
    q, k = torch.full_like(q, 5), torch.full_like(v, -5)
    out, lse = flash_attention(q, k, v, return_lse=True)
    torch.testing.assert_close(lse, torch.full_like(lse, -200 + math.log(74)))
    torch.testing.assert_close(out.float(), v.float().mean(1, keepdim=True).expand_as(out), rtol=0, atol=4e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_equal_keys_give_the_mean_and_one_hot_values_the_row(device: str) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (x.detach() for x in tensors(device, dtype, 1, 64, 64, 1, 1, 64))
    mean = flash_attention(torch.zeros_like(q), k, torch.ones_like(v))
    assert torch.equal(mean, torch.ones_like(mean))
    identity = torch.eye(64, device=device, dtype=dtype)[None, :, None, :]
    picked = flash_attention(identity * 100, identity * 100, v)  # key i is the only one that row i feels
    assert torch.equal(picked, v)


@pytest.mark.parametrize("shape", [(0, 5, 5, 2), (2, 0, 5, 2), (2, 5, 0, 2), (2, 0, 0, 2), (2, 5, 5, 0)])
@pytest.mark.parametrize("device", DEVICES)
def test_empty_axes(device: str, shape: tuple[int, ...]) -> None:
    batch, rows, keys, heads = shape
    inputs = tensors(
        device, torch.float32 if device == "cpu" else torch.bfloat16, batch, rows, keys, heads, heads, 8
    )
    out, lse = flash_attention(*inputs, return_lse=True)
    assert out.shape == (batch, rows, heads, 8) and lse.shape == (batch, heads, rows)
    assert not out.any() and bool((lse == -math.inf).all())
    grads = torch.autograd.grad(out.sum(), inputs)
    assert all(g.shape == x.shape and not g.any() for g, x in zip(grads, inputs, strict=True))


def test_gradcheck() -> None:
    inputs = tensors("cpu", torch.float64, 1, 9, 12, 2, 1, 5)
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def call(q: Any, k: Any, v: Any, s: Any) -> Any:
        return flash_attention(q, k, v, causal=True, softcap=3.0, sink=s, return_lse=True)

    assert torch.autograd.gradcheck(call, (*inputs, sink))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("varlen", [False, True])
def test_opcheck(device: str, varlen: bool) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    inputs = tensors(device, dtype, 1, 20, 20, 2, 2, 16)
    cu = None
    if varlen:
        inputs = [x.detach()[0].requires_grad_() for x in inputs]
        cu = torch.tensor([0, 7, 20], dtype=torch.int32, device=device)
    sink = torch.zeros(2, device=device, requires_grad=True)
    torch.library.opcheck(
        torch.ops.profiling_lab.attention_fwd.default,
        (*inputs, sink, cu, cu, 0.25, -1, 0, 0.0, False),
        rtol=2e-2 if device == "cuda" else None,
        atol=2e-2 if device == "cuda" else None,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_compile_fullgraph(device: str) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    inputs = tensors(device, dtype, 2, 33, 47, 4, 2, 32)

    def call(q: Any, k: Any, v: Any) -> Any:
        return flash_attention(q, k, v, causal=True, window=(9, 0)) * 2

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for a, b in zip(
        [compiled(*inputs), *torch.autograd.grad(compiled(*inputs).sum(), inputs)],
        [call(*inputs), *torch.autograd.grad(call(*inputs).sum(), inputs)],
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_vmap_folds_into_the_batch() -> None:
    q, k, v = (torch.randn(3, 2, 10, 4, 8) for _ in range(3))
    out = torch.vmap(flash_attention)(q, k, v)
    assert torch.equal(out, torch.stack([flash_attention(*x) for x in zip(q, k, v, strict=True)]))
    shared = torch.vmap(flash_attention, in_dims=(0, None, None))(q, k[0], v[0])
    assert torch.equal(shared, torch.stack([flash_attention(x, k[0], v[0]) for x in q]))


def test_autocast_casts_queries_keys_and_values() -> None:
    q, k, v = (torch.randn(1, 10, 2, 8) for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = flash_attention(q, k, v, sink=torch.zeros(2))
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"k": (1, 5, 3, 8), "v": (1, 5, 3, 8)}, "q has 4 heads, not a multiple of the 3 heads of k"),
        ({"v": (1, 6, 4, 8)}, "v has shape \\[1, 6, 4, 8\\] but k has shape \\[1, 5, 4, 8\\]"),
        ({"k": (1, 5, 4, 16), "v": (1, 5, 4, 16)}, "k has head_dim 16 but q has 8"),
        ({"q": (5, 4, 8)}, "q has shape \\[5, 4, 8\\], expected \\(batch, rows, heads, head_dim\\)"),
        ({"k": (2, 5, 4, 8), "v": (2, 5, 4, 8)}, "k has batch 2 but q has 1"),
    ],
)
def test_shapes_that_do_not_fit(change: dict[str, tuple[int, ...]], sentence: str) -> None:
    shapes = {"q": (1, 5, 4, 8), "k": (1, 5, 4, 8), "v": (1, 5, 4, 8)} | change
    with pytest.raises(ValueError, match=sentence):
        flash_attention(*(torch.zeros(shape) for shape in shapes.values()))


@pytest.mark.parametrize(
    ("offsets", "sentence"),
    [
        ([0, 9, 5], "decreases"),
        ([1, 5, 9], "starts with 1"),
        ([0, 5, 99], "ends with 99 but there are 10 rows"),
    ],
)
def test_offsets_that_do_not_fit(offsets: list[int], sentence: str) -> None:
    q = torch.zeros(10, 2, 8)
    good, bad = (torch.tensor(x, dtype=torch.int32) for x in ([0, 5, 10], offsets))
    with pytest.raises(ValueError, match=sentence):
        flash_attention(q, q, q, cu_seqlens_q=bad, cu_seqlens_k=good)
    with pytest.raises(ValueError, match="together or not at all"):
        flash_attention(q, q, q, cu_seqlens_q=good)


def test_the_number_of_threads_changes_nothing() -> None:
    inputs = tensors("cpu", torch.float32, 1, 300, 300, 2, 1, 64)
    before = torch.get_num_threads()
    runs = []
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            runs.append(results(flash_attention, inputs, causal=True))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_module_equals_torch_attention() -> None:
    torch.manual_seed(0)
    module = FlashSelfAttention(48, 6, 2, causal=True)
    x = torch.randn(2, 13, 48)
    q, k, v = module.qkv(x).view(2, 13, 10, 8).transpose(1, 2).split((6, 2, 2), dim=1)
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(module(x), module.out(heads.transpose(1, 2).reshape(2, 13, 48)))
    with pytest.raises(ValueError, match="do not divide evenly"):
        FlashSelfAttention(48, 5)


@pytest.mark.parametrize("device", DEVICES)
def test_existing_models_use_it_through_the_context(device: str) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (x.detach().transpose(1, 2) for x in tensors(device, dtype, 1, 40, 40, 4, 2, 64))
    expected = attention_flash(q, k, v, causal=True)
    with flash_attention_for_sdpa():
        assert torch.equal(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), expected)
        mask = torch.zeros(40, 40, device=device, dtype=dtype)
        masked = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(
        masked, F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_gradients_repeat_bit_for_bit_when_asked(dim: int) -> None:
    inputs = tensors("cuda", torch.bfloat16, 2, 1000, 1000, 8, 2, dim)
    first = results(flash_attention, inputs, causal=True, deterministic=True)
    for _ in range(20):
        again = results(flash_attention, inputs, causal=True, deterministic=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.gpu
def test_graph_replay_with_other_offsets_and_no_synchronisation() -> None:
    q, k, v = (torch.randn(300, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    cu = torch.tensor([0, 100, 300], dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        flash_attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flash_attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True)
    cu.copy_(torch.tensor([0, 290, 300], dtype=torch.int32))
    graph.replay()
    torch.cuda.set_sync_debug_mode("error")
    try:
        expected = flash_attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(captured, expected)


@pytest.mark.gpu
def test_long_rows_agree_with_torch() -> None:
    q, k, v = (x.detach() for x in tensors("cuda", torch.bfloat16, 1, 4224, 4224, 4, 4, 128))
    with sdpa_kernel(SDPBackend.MATH):
        expected = attention_flash_math(q, k, v)
    torch.testing.assert_close(flash_attention(q, k, v, causal=True), expected, rtol=2e-2, atol=2e-2)


def attention_flash_math(q: Any, k: Any, v: Any) -> Any:
    out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)
    return out.transpose(1, 2)
