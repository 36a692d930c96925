# SPDX-License-Identifier: Apache-2.0
"""flash_attention: O = softmax(mask(Q K^T scale)) V without the score matrix, forward and backward.

With P the softmax, D = rowsum(dO * O) - dLSE and dS = P * (dO V^T - D), head by head:
    dV = P^T dO    dK = scale dS^T Q    dQ = scale dS K    dsink = -sum of P_sink D
"""

from __future__ import annotations

import math
from functools import partial
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from profiling_lab.ops import _registration as registration
from profiling_lab.ops._load import has_cuda_kernels
from profiling_lab.ops.case import OpCase, Shape, TestShape, Variant, drawing

__all__ = [
    "FlashSelfAttention",
    "attention",
    "attention_flash",
    "flash_attention",
    "flash_attention_for_sdpa",
]

Window = int | tuple[int, int] | None


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: Window = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
) -> Any:
    """Return softmax(mask(q k^T * scale)) v, and with return_lse also the softmax's log-sum-exp.

    q is (batch, rows, heads, head_dim); k and v are (batch, keys, kv_heads, head_dim), heads a multiple of
    kv_heads (query head h reads key head h // (heads / kv_heads)). Any strides with a dense last dimension
    are read in place, so a tensor kept as (batch, heads, rows, head_dim) is passed as x.transpose(1, 2).
    bfloat16 and float16 on CUDA with head_dim a multiple of 8 up to 256; float32, float64, bfloat16 and
    float16 on the CPU with any head_dim. Sums are kept in float32 (float64 for float64).

    causal:   query i sees keys up to i + keys - rows, so the last query sees the last key.
    scale:    factor of the scores; 1 / sqrt(head_dim) by default.
    window:   (left, right), or one number for both: query i also sees no key further than that from
              i + keys - rows; a negative number is no limit.
    softcap:  c > 0 turns each score s into c tanh(s / c).
    sink:     (heads,) logits, float32 (or float64), that join each row's sum and carry no value.
    cu_seqlens_q, cu_seqlens_k: int32 offsets (batch + 1); q, k and v are then (rows of all sequences, heads,
              head_dim), and sequence b owns rows [cu[b], cu[b + 1]). On the GPU the host never reads the
              offsets. Rows behind the last offset give 0.

    Returns out, contiguous and of q's shape; with return_lse also lse, (batch, heads, rows) or (heads,
    rows), float32 (or float64), differentiable too. A row that sees nothing gives out 0, lse -inf (or the
    sink) and gradients 0.

    deterministic, or torch.use_deterministic_algorithms: the gradients have the same bits in every run.
    Differentiable once, in reverse mode. Under autocast q, k and v are cast, as for matrix multiplications.
    Raises ValueError for shapes, dtypes, devices or options that do not fit together; RuntimeError for a
    CUDA tensor where profiling_lab was built without CUDA kernels, and for forward-mode or second-order
    differentiation.
    Algorithm: Dao et al., FlashAttention (2022), FlashAttention-2 (2023), FlashAttention-3 (2024).
    """
    way = _OP.way(q, k, v, sink, cu_seqlens_q, cu_seqlens_k)
    left, right = _window(window, causal)
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1))
    if sink is not None:
        sink = sink.to(_statistics(q.dtype)).contiguous()
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    out, lse = way(
        q, k, v, sink, cu_seqlens_q, cu_seqlens_k, float(scale), left, right, float(softcap), deterministic
    )
    return (out, lse) if return_lse else out


attention = flash_attention


def attention_flash(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """flash_attention for tensors kept as (batch, heads, rows, head_dim); the result is laid out so too."""
    out = flash_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options)
    return cast(Tensor, out.transpose(1, 2))


def _window(window: Window, causal: bool) -> tuple[int, int]:
    if window is None:
        return -1, 0 if causal else -1
    pair = (window, window) if isinstance(window, int) else window
    if not isinstance(pair, (tuple, list)) or [type(side) for side in pair] != [int, int]:
        raise ValueError(
            f"flash_attention: window is {window!r}, expected (left, right) or one number, whole numbers"
        )
    left, right = pair
    if causal:
        right = 0 if right < 0 else min(right, 0)
    return max(left, -1), max(right, -1)


def _statistics(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


# The op


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, cu_seqlens_q: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor]:
    dims = 4 if cu_seqlens_q is None else 3
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != dims:
            expected = (
                "(batch, rows, heads, head_dim)" if dims == 4 else "(rows, heads, head_dim) with cu_seqlens"
            )
            raise ValueError(f"flash_attention: {name} has shape {list(tensor.shape)}, expected {expected}")
    rows = (q.shape[0], q.shape[2], q.shape[1]) if dims == 4 else (q.shape[1], q.shape[0])
    return q.new_empty(q.shape), q.new_empty(rows, dtype=_statistics(q.dtype))


def _backward_fake(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sink: Tensor | None,
    *_: Any,
) -> tuple[Tensor, ...]:
    heads = 0 if sink is None else sink.shape[0]
    return (
        *(tensor.new_empty(tensor.shape) for tensor in (q, k, v)),
        q.new_empty((heads,), dtype=_statistics(q.dtype)),
    )


def _gradients(
    call: Any, saved: tuple[Tensor, ...], options: tuple[Any, ...], grads: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    dout, dlse = grads
    if dout is None and dlse is None:
        return (None,) * 6
    if dout is None:
        dout = torch.zeros_like(saved[3])
    dq, dk, dv, dsink = call(dout, dlse, *saved, *options)
    return dq, dk, dv, None if saved[5] is None else dsink, None, None


def _cast(dtype: torch.dtype, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return registration.cast_all(dtype, args[:3]) + args[3:]  # the sink and the offsets keep their types


def _vmap(op: Any, size: int, dims: tuple[int | None, ...], args: tuple[Any, ...]) -> tuple[Any, Any]:
    has_batch = args[4] is None
    rule = registration.larger_batch if has_batch else registration.separate_calls
    return rule(op, size, dims, args)


_OP = registration.Op(
    name="attention_fwd",
    slug="flash_attention",
    fake=_forward_fake,
    # rows x (head_dim + 1) numbers of results; the probabilities are computed again
    saved="q k v out lse sink cu_seqlens_q cu_seqlens_k",
    backward_op=registration.BackwardOp(name="attention_bwd", slug="flash_attention", fake=_backward_fake),
    backward=_gradients,
    results=2,
    cast=_cast,
    vmap=_vmap,
)


class FlashSelfAttention(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Multi-head self-attention on flash_attention: applies to (batch, rows, d_model) and returns the same
    shape.

    One projection makes queries, keys and values (kv_heads of them: fewer than heads is grouped-query
    attention), one joins the heads again. `options` go to flash_attention with every call: causal, window,
    softcap, ...
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or d_model % heads or kv_heads < 1 or heads % kv_heads:
            raise ValueError(
                f"FlashSelfAttention: d_model {d_model}, heads {heads} and kv_heads {kv_heads} "
                "do not divide evenly"
            )
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, d_model // heads
        self.options = options
        width = (heads + 2 * kv_heads) * self.head_dim
        self.qkv = nn.Linear(d_model, width, bias=bias, device=device, dtype=dtype)
        self.out = nn.Linear(d_model, d_model, bias=bias, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        *lead, rows, d_model = x.shape
        qkv = self.qkv(x).reshape(-1, rows, self.heads + 2 * self.kv_heads, self.head_dim)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=2)
        return cast(Tensor, self.out(self.attend(q, k, v).reshape(*lead, rows, d_model)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention itself, between the two projections."""
        return cast(Tensor, flash_attention(q, k, v, **self.options))

    def extra_repr(self) -> str:
        return f"heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}"


class flash_attention_for_sdpa(TorchFunctionMode):  # type: ignore[misc]  # a context, used like a function
    """While active, F.scaled_dot_product_attention runs flash_attention wherever the two mean the same.

    Calls with a mask, with dropout, on a device or dtype without kernels, or causal with unequal lengths
    (torch aligns those top-left) keep torch's own implementation. nn.MultiheadAttention and what is built on
    it take part. A backward that recomputes (torch.utils.checkpoint) belongs inside the context too.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            result = _sdpa(*args, **kwargs)
            if result is not None:
                return result
        if func in _LOOKED_INTO:
            with self:
                return _LOOKED_INTO[func](*args, **kwargs)
        return func(*args, **kwargs)


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """scaled_dot_product_attention by flash_attention, or None where only torch's own can answer."""
    if attn_mask is not None or dropout_p != 0.0 or query.dim() != 4:
        return None
    if not _has_kernels(query.device.type, query.device.index):
        return None
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape != value.shape:
        return None
    if query.shape[-1] != key.shape[-1] or (is_causal and query.shape[2] != key.shape[2]):
        return None
    if query.shape[1] != key.shape[1] and not (enable_gqa and query.shape[1] % key.shape[1] == 0):
        return None
    if query.is_cuda and not torch.is_autocast_enabled("cuda"):
        if query.dtype not in (torch.bfloat16, torch.float16):
            return None
        if query.shape[-1] % 8 or query.shape[-1] > 256:
            return None
    return attention_flash(query, key, value, causal=is_causal, scale=scale)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch is untyped here
def _has_kernels(device_type: str, index: int | None) -> bool:
    """Whether flash_attention runs on such a device at all: the CPU, or a GPU of 8.0 or newer."""
    if device_type != "cuda":
        return device_type == "cpu"
    if index not in _GPUS:
        _GPUS[index] = has_cuda_kernels() and torch.cuda.get_device_capability(index) >= (8, 0)
    return _GPUS[index]


_GPUS: dict[int | None, bool] = {}
"""Which of them, as far as they have been asked about."""


def _body_of(function: Any) -> Any:
    """The function without its own question whether a mode is there."""
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    silent = dict.fromkeys(names, lambda *_: False)
    body = FunctionType(
        function.__code__, {**function.__globals__, **silent}, function.__name__, function.__defaults__
    )
    body.__kwdefaults__ = function.__kwdefaults__
    return body


# A mode that was asked about a function is not asked about the calls inside of it. For these it must be: the
# one function of torch's that calls scaled_dot_product_attention, and those that may run a forward again.
_LOOKED_INTO = {
    function: _body_of(function)
    for function in (
        F.multi_head_attention_forward, Tensor.backward, torch.autograd.backward, torch.autograd.grad
    )
}  # fmt: skip


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: Window = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """flash_attention in plain torch with the whole score matrix, as the formulas say; fixed lengths."""
    left, right = _window(window, causal)
    rows, keys, group = q.shape[1], k.shape[1], q.shape[2] // max(k.shape[2], 1)
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1)
    scores = scores * (1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    i = torch.arange(rows, device=q.device)[:, None] + keys - rows
    j = torch.arange(keys, device=q.device)[None, :]
    visible = torch.ones(rows, keys, dtype=torch.bool, device=q.device)
    if left >= 0:
        visible &= j >= i - left
    if right >= 0:
        visible &= j <= i + right
    scores = scores.masked_fill(~visible, -math.inf)
    if sink is not None:
        column = sink.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    lse = torch.logsumexp(scores.to(_statistics(q.dtype)), dim=-1)
    zero = lse.masked_fill(lse == -math.inf, 0.0)
    p = torch.exp(scores - zero[..., None].to(scores.dtype))[..., :keys]
    out = (p @ v.transpose(1, 2)).transpose(1, 2)
    return (out, lse) if return_lse else out


# The case


def _make_inputs(
    shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> tuple[Tensor, ...]:
    draw = drawing(dtype, device, generator)
    return draw(*shape), draw(*shape), draw(*shape)


def _dispatcher_calls(inputs: tuple[Tensor, ...]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    q, k, v = inputs
    options = (1 / math.sqrt(max(q.shape[-1], 1)), -1, 0, 0.0, False)
    with torch.no_grad():
        out, lse = _OP.way(q, k, v)(q, k, v, None, None, None, *options)
    return (
        ("attention_fwd", (q, k, v, None, None, None, *options)),
        ("attention_bwd", (torch.ones_like(out), None, q, k, v, out, lse, None, None, None, *options)),
    )


def _flops(shape: Shape) -> int:
    batch, rows, heads, dim = shape
    return 4 * batch * heads * rows * rows * dim


def _bytes(shape: Shape, dtype: torch.dtype) -> int:
    batch, rows, heads, dim = shape
    return 4 * batch * rows * heads * dim * int(dtype.itemsize) + 4 * batch * rows * heads


def _variant(name: str, **options: Any) -> Variant:
    return Variant(name, partial(flash_attention, **options), partial(reference, **options))


CASE = OpCase(
    slug="attention",
    function="flash_attention",
    variants=(
        _variant("full"),
        _variant("causal", causal=True),
        _variant("window", window=(20, 7)),
        _variant("softcap", softcap=5.0),
    ),
    make_inputs=_make_inputs,
    dispatcher_calls=_dispatcher_calls,
    flops=_flops,
    bytes=_bytes,
    test_shapes=(
        TestShape("a partial tile", (2, 33, 2, 16)),
        TestShape("one tile exactly", (1, 64, 1, 64)),
        TestShape("one row more than a tile", (1, 129, 2, 64)),
        TestShape("several tiles, padded head_dim", (1, 200, 2, 40)),
        TestShape("no rows", (1, 0, 2, 8)),
        TestShape("no batch", (0, 5, 2, 8)),
    ),
    bench_shapes=((8, 2048, 16, 128), (2, 8192, 16, 128)),
    module=partial(FlashSelfAttention, heads=1),
    cuda_dtypes=("bfloat16", "float16"),
)
