# SPDX-License-Identifier: Apache-2.0
"""flash_attention: O = softmax(mask(Q K^T scale)) V without the score matrix, forward and backward.

With P the softmax, D = rowsum(dO * O) - dLSE and dS = P * (dO V^T - D), head by head:
    dV = P^T dO    dK = scale dS^T Q    dQ = scale dS K    dsink = -sum of P_sink D
"""

from __future__ import annotations

import math
from contextlib import ContextDecorator
from functools import partial
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, handle_torch_function

from profiling_lab.ops import _registration as registration
from profiling_lab.ops import explain
from profiling_lab.ops._attention_blocks import flash_attention_with_block_mask
from profiling_lab.ops._attention_cache import flash_attention_with_cache
from profiling_lab.ops._attention_fakes import SLUG, backward_fake, forward_fake
from profiling_lab.ops._attention_in_torch import (
    Window,
    backward_in_torch,
    forward_in_torch,
    reference,
    window_of,
)
from profiling_lab.ops._attention_ring import merge_attention, ring_attention
from profiling_lab.ops._block_mask import prepare_block_mask
from profiling_lab.ops._calls import is_plain_call
from profiling_lab.ops._load import has_cuda_kernels
from profiling_lab.ops._padding import Padding, may_be_padding, padding_of
from profiling_lab.ops.case import OpCase, Shape, TestShape, Variant, drawing

__all__ = [
    "FlashSelfAttention",
    "attention",
    "attention_flash",
    "flash_attention",
    "flash_attention_for_sdpa",
    "flash_attention_with_block_mask",
    "flash_attention_with_cache",
    "merge_attention",
    "prepare_block_mask",
    "ring_attention",
]


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
    kv_heads (query head h reads key head h // (heads / kv_heads)). v may have a head_dim of its own, which
    is then out's. Any strides with a dense last dimension are read in place, so a tensor kept as (batch,
    heads, rows, head_dim) is passed as x.transpose(1, 2).
    bfloat16 and float16 on CUDA with head dims that are multiples of 8 up to 256; float32, float64, bfloat16
    and float16 on the CPU with any head_dim. Sums are kept in float32 (float64 for float64).

    causal:   query i sees keys up to i + keys - rows, so the last query sees the last key.
    scale:    factor of the scores; 1 / sqrt(head_dim) by default.
    window:   (left, right), or one number for both: query i also sees no key further than that from
              i + keys - rows; a negative number is no limit.
    softcap:  c > 0 turns each score s into c tanh(s / c).
    sink:     (heads,) logits, float32 (or float64), that join each row's sum and carry no value.
    cu_seqlens_q, cu_seqlens_k: int32 offsets (batch + 1); q, k and v are then (rows of all sequences, heads,
              head_dim), and sequence b owns rows [cu[b], cu[b + 1]). On the GPU the host never reads the
              offsets. Rows behind the last offset give 0.

    Returns out, contiguous and of q's shape but for head_dim, which is v's; with return_lse also lse, (batch,
    heads, rows) or (heads, rows), float32 (or float64), differentiable too. A row that sees nothing gives out
    0, lse -inf (or the sink) and gradients 0.

    deterministic, or torch.use_deterministic_algorithms: the gradients have the same bits in every run.
    Differentiable to any order, in both modes, and under torch.func: what goes beyond first gradients is
    computed in plain torch, with the memory of the score matrix. Under autocast q, k and v are cast, as
    for matrix multiplications.
    Raises ValueError for shapes, dtypes, devices or options that do not fit together; RuntimeError for a
    CUDA tensor where profiling_lab was built without CUDA kernels.
    Algorithm: Dao et al., FlashAttention (2022), FlashAttention-2 (2023), FlashAttention-3 (2024).
    """
    way = _OP.way(q, k, v, sink, cu_seqlens_q, cu_seqlens_k)
    if way is None:
        return handle_torch_function(
            flash_attention,
            (q, k, v, sink, cu_seqlens_q, cu_seqlens_k),
            *(q, k, v),
            causal=causal,
            scale=scale,
            window=window,
            softcap=softcap,
            sink=sink,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            return_lse=return_lse,
            deterministic=deterministic,
        )
    left, right = window_of(window, causal)
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1))
    elif isinstance(scale, Tensor):
        registration.check_constant("flash_attention", "scale", scale)
    if isinstance(softcap, Tensor):
        registration.check_constant("flash_attention", "softcap", softcap)
    if sink is not None:
        sink = sink.to(registration.sums_of(q.dtype)).contiguous()
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    try:
        out, lse = way(
            q,
            k,
            v,
            sink,
            cu_seqlens_q,
            cu_seqlens_k,
            float(scale),
            left,
            right,
            float(softcap),
            deterministic,
        )
    except Exception as error:
        _OP.explain(error, q, k, v, sink, cu_seqlens_q, cu_seqlens_k)
        raise
    return (out, lse) if return_lse else out


attention = flash_attention


def attention_flash(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """flash_attention for tensors kept as (batch, heads, rows, head_dim); the result is laid out so too."""
    out = flash_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options)
    return cast(Tensor, out.transpose(1, 2))


# The op


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
    rule = registration.larger_batch(3) if has_batch else registration.separate_calls
    return rule(op, size, dims, args)


def _backward_vmap(
    op: Any, size: int, dims: tuple[int | None, ...], args: tuple[Any, ...]
) -> tuple[Any, Any]:
    if args[7] is not None or args[8] is not None:  # of the sink, a gradient for each call
        return registration.separate_calls(op, size, dims, args)

    def of_batch(*arguments: Any) -> Any:
        return op(*arguments)[:3]

    gradients, out_dims = registration.larger_batch(7)(of_batch, size, dims, args)
    return (*gradients, gradients[0].new_empty(0, dtype=args[6].dtype)), (*out_dims, None)


_OP = registration.Op(
    name="attention_fwd",
    slug=SLUG,
    fake=forward_fake,
    in_torch=forward_in_torch,
    # rows x (head_dim + 1) numbers of results; the probabilities are computed again
    saved="q k v out lse sink cu_seqlens_q cu_seqlens_k",
    backward_op=registration.BackwardOp(
        name="attention_bwd",
        slug=SLUG,
        fake=backward_fake,
        in_torch=backward_in_torch,
        differentiable="dout dlse q k v sink",
        vmap=_backward_vmap,
    ),
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
        qkv = self.qkv(x).reshape(-1, x.shape[-2], self.heads + 2 * self.kv_heads, self.head_dim)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=2)
        return cast(Tensor, self.out(self.attend(q, k, v).reshape(x.shape)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention itself, between the two projections."""
        return cast(Tensor, flash_attention(q, k, v, **self.options))

    def extra_repr(self) -> str:
        return f"heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}"


class flash_attention_for_sdpa(TorchFunctionMode, ContextDecorator):  # type: ignore[misc]  # used like a function
    """While active, F.scaled_dot_product_attention runs flash_attention wherever the two mean the same.

    A context, and a decorator for functions. nn.MultiheadAttention and what is built on it take part, except
    inside of torch.compile. Boolean masks (batch, 1, 1, keys) whose False ones are the last keys become
    lengths; on a GPU the host waits for their values, once for each mask (_padding.py).
    What keeps its own implementation: calls with another mask, with dropout, on a device or dtype without
    kernels, or causal with unequal lengths (torch aligns those top-left); tensors of other classes (DTensor,
    nested, fake, torch.fx); torch.func's transforms and forward mode; and calls in an sdpa_kernel that leaves
    out FLASH_ATTENTION. A backward that recomputes (torch.utils.checkpoint) belongs inside the context too.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            result = _sdpa(*args, **kwargs)
            if not isinstance(result, str):
                return result
            if explain.ON:
                explain.say(f"scaled_dot_product_attention: left to torch: {result}")
        if func in _LOOKED_INTO and not torch.compiler.is_compiling():
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
) -> Tensor | str:
    """scaled_dot_product_attention by flash_attention, or why only torch's own can answer."""
    if not is_plain_call(query, key, value) or query.is_nested or key.is_nested or value.is_nested:
        return "no plain call of plain tensors"
    if dropout_p != 0.0:
        return "dropout"
    if query.dim() != 4:
        return "tensors of other than four dimensions"
    if attn_mask is not None and (is_causal or not may_be_padding(attn_mask, query, key)):
        return "a mask"
    if isinstance(scale, Tensor):
        return "a tensor for scale"
    if not _flash_is_wanted():
        return "sdpa_kernel without flash attention"
    if not _has_kernels(query.device.type, query.device.index):
        return "no kernels for the device"
    if not query.device == key.device == value.device or not query.dtype == key.dtype == value.dtype:
        return "several devices or dtypes"
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[:-1] != value.shape[:-1]:
        return "batches that are broadcast, or keys and values of different shapes"
    if query.shape[-1] != key.shape[-1]:
        return "queries and keys of different head_dims"
    if is_causal and query.shape[2] != key.shape[2]:
        return "causal with unequal lengths, which torch aligns at the first key"
    if query.shape[-1] == 0 or value.shape[-1] == 0 or not query.is_floating_point():
        return "head_dim 0, or numbers that are no floating point"
    if query.shape[1] != key.shape[1] and not (enable_gqa and query.shape[1] % key.shape[1] == 0):
        return "heads that do not match"
    if query.is_cuda and not torch.is_autocast_enabled("cuda"):
        if query.dtype not in (torch.bfloat16, torch.float16):
            return "a dtype other than bfloat16 and float16 on CUDA"
        if any(x.shape[-1] % 8 or x.shape[-1] > 256 for x in (query, value)):
            return "a head_dim on CUDA that is not a multiple of 8 up to 256"
    if attn_mask is None:
        return attention_flash(query, key, value, causal=is_causal, scale=scale)
    if query.shape[2] == 1:
        return "a mask for one query a sequence, which would cost copies of the keys"
    padding = padding_of(attn_mask, query.shape[0], query.shape[2])
    return padding if isinstance(padding, str) else _padded(query, key, value, padding, scale)


def _padded(query: Tensor, key: Tensor, value: Tensor, padding: Padding, scale: float | None) -> Tensor:
    if explain.ON:
        explain.say("scaled_dot_product_attention: a mask of padding, taken as lengths")
    if padding.cu_seqlens_q is None:
        key, value = key[:, :, : padding.keys], value[:, :, : padding.keys]
        return attention_flash(query, key, value, scale=scale)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    offsets = {"cu_seqlens_q": padding.cu_seqlens_q, "cu_seqlens_k": padding.cu_seqlens_k}
    out = flash_attention(q, k, v, scale=scale, **offsets)
    return cast(Tensor, out.unflatten(0, (query.shape[0], query.shape[2])).transpose(1, 2))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch is untyped here
def _flash_is_wanted() -> bool:
    """Whether torch.nn.attention.sdpa_kernel has FLASH_ATTENTION among its backends, as it has by default."""
    return bool(torch.backends.cuda.flash_sdp_enabled())


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


class _Globals(dict[str, Any]):
    """A function's globals with some of them replaced; what others patch in the module is seen."""

    def __init__(self, module: dict[str, Any], replaced: dict[str, Any]) -> None:
        super().__init__(replaced, __builtins__=module["__builtins__"])
        self._module = module

    def __missing__(self, name: str) -> Any:
        return self._module[name]


def _body_of(function: Any) -> Any:
    """The function without its own question whether a mode is there."""
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    silent = _Globals(function.__globals__, dict.fromkeys(names, lambda *_: False))
    body = FunctionType(function.__code__, silent, function.__name__, function.__defaults__)
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
