# SPDX-License-Identifier: Apache-2.0
"""ladder_attention: attention three times, naive, tiled and flash, to be read, profiled and compared.

The rungs compute the same O = softmax(mask(Q K^T scale)) V. Only their forward climbs: the backward is one,
in plain torch with all probabilities in memory,
    dV = P^T dO    dS = P * (dO V^T - rowsum(P * dO V^T))    dQ = scale dS K    dK = scale dS^T Q
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from profiling_lab.ops import _registration as registration
from profiling_lab.ops._attention_in_torch import forward_in_torch, reference
from profiling_lab.ops.attention import CASE as ATTENTION
from profiling_lab.ops.attention import FlashSelfAttention
from profiling_lab.ops.case import OpCase, Shape, TestShape, Variant

__all__ = ["LadderSelfAttention", "ladder_attention"]

Rung = Literal["naive", "tiled", "flash"]
RUNGS: tuple[Rung, ...] = get_args(Rung)
_FLASH_MAX_HEAD_DIM = 128  # kFlashMaxHeadDim of csrc/ops/ladder_attention


def ladder_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None, rung: Rung = "flash"
) -> Tensor:
    """Return softmax(mask(q k^T * scale)) v, computed as `rung` does.

    q is (batch, rows, heads, head_dim), k and v are (batch, keys, heads, head_dim), of one dtype and device:
    float32, bfloat16 or float16, on the CPU also float64. Sums are kept in float32 (float64 for float64). The
    result is contiguous and has q's shape.

    rung:
      "naive"  three kernels, one thread per result; the scores lie in memory, batch * heads * rows * keys of
               them in float32
      "tiled"  the same three steps, the products through tiles in shared memory
      "flash"  one kernel, no scores in memory; head_dim at most 128 on CUDA
    causal, scale: as in flash_attention, which is the op to use; this one is for learning from
    (csrc/ops/ladder_attention/README.md).

    Differentiable to any order, in both modes, and under torch.func. Under autocast all inputs are cast, as
    for matrix multiplications.
    Raises ValueError for shapes, dtypes, devices or options that do not fit together; RuntimeError for a
    CUDA tensor where profiling_lab was built without CUDA kernels.
    """
    way = _OP.way(q, k, v)
    if way is None:
        options = {"causal": causal, "scale": scale, "rung": rung}
        return cast(Tensor, handle_torch_function(ladder_attention, (q, k, v), q, k, v, **options))
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1))
    elif isinstance(scale, Tensor):
        registration.check_constant("ladder_attention", "scale", scale)
    try:
        return cast(Tensor, way(q, k, v, float(scale), causal, rung))
    except Exception as error:
        _OP.explain(error, q, k, v)
        raise


# The op


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, rung: str) -> Tensor:
    """With the checks of ladder_attention.cpp, in its words."""
    slug = "ladder_attention"
    if rung not in RUNGS:
        raise ValueError(f"{slug}: rung is '{rung}', expected 'naive', 'tiled' or 'flash'")
    registration.check_alike(slug, q=q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(
                f"{slug}: {name} has shape {list(x.shape)}, expected (batch, rows, heads, head_dim)"
            )
    if k.shape != v.shape:
        raise ValueError(f"{slug}: v has shape {list(v.shape)} but k has shape {list(k.shape)}")
    if q.shape[0] != k.shape[0] or q.shape[2:] != k.shape[2:]:
        shapes = f"k has shape {list(k.shape)} but q has shape {list(q.shape)}"
        raise ValueError(f"{slug}: {shapes}; only the rows may differ")
    registration.check_dtype(slug, q)
    if q.is_cuda and rung == "flash" and q.shape[3] > _FLASH_MAX_HEAD_DIM:
        raise ValueError(
            f"{slug}: head_dim is {q.shape[3]}, expected at most {_FLASH_MAX_HEAD_DIM} for the flash rung "
            "on CUDA"
        )
    return q.new_empty(q.shape)


def _forward_in_torch(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, rung: str) -> Tensor:
    return forward_in_torch(q, k, v, None, None, None, scale, -1, 0 if causal else -1, 0.0)[0]


def _backward_in_torch(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """An op of its own: what it keeps of the probabilities lives no longer than the call."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    queries, keys, values, slope = (x.to(wide).transpose(1, 2) for x in (q, k, v, dout))
    scores = queries @ keys.mT * scale
    rows, columns = scores.shape[-2:]
    if causal:
        visible = torch.ones(rows, columns, dtype=torch.bool, device=q.device).tril(columns - rows)
        scores = scores.masked_fill(~visible, -math.inf)
    top = torch.logsumexp(scores, dim=-1, keepdim=True)
    p = torch.exp(scores - top.masked_fill(top == -math.inf, 0.0))  # a row that sees nothing: all zeros
    dp = slope @ values.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    grads = (ds @ keys * scale, ds.mT @ queries * scale, p.mT @ slope)
    dq, dk, dv = (g.transpose(1, 2).to(x.dtype).contiguous() for g, x in zip(grads, (q, k, v), strict=True))
    return dq, dk, dv


def _backward_fake(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _gradients(
    call: Any, saved: tuple[Tensor, ...], options: tuple[Any, ...], grads: tuple[Tensor]
) -> tuple[Tensor | None, ...]:
    return cast(tuple[Tensor, ...], call(*grads, *saved, *options[:2]))


registration.define(
    "ladder_attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, float scale, bool causal)"
    " -> (Tensor dq, Tensor dk, Tensor dv)",
    _backward_in_torch,
)
_OP = registration.Op(
    name="ladder_attention",
    slug="ladder_attention",
    fake=_forward_fake,
    in_torch=_forward_in_torch,
    saved="q k v",
    backward_op=registration.BackwardOp(
        name="ladder_attention_backward",
        slug="ladder_attention",
        fake=_backward_fake,
        in_torch=_backward_in_torch,
        differentiable="dout q k v",
        vmap=registration.larger_batch(4),
        calls_torch=True,
    ),
    backward=_gradients,
    vmap=registration.larger_batch(3),
)


class LadderSelfAttention(FlashSelfAttention):
    """FlashSelfAttention on ladder_attention; `options` (causal, scale, rung) go to it with every call."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ladder_attention(q, k, v, **self.options)


# The case


def _dispatcher_calls(inputs: tuple[Tensor, ...]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    options = (1 / math.sqrt(max(inputs[0].shape[-1], 1)), True)
    return (
        ("ladder_attention", (*inputs, *options, "flash")),
        ("ladder_attention_backward", (torch.ones_like(inputs[0]), *inputs, *options)),
    )


def _bytes(shape: Shape, dtype: torch.dtype) -> int:
    return 4 * math.prod(shape) * int(dtype.itemsize)


def _variant(rung: Rung, causal: bool) -> Variant:
    return Variant(
        f"{rung}-{'causal' if causal else 'full'}",
        partial(ladder_attention, causal=causal, rung=rung),
        partial(reference, causal=causal),
    )


CASE = OpCase(
    slug="ladder_attention",
    variants=tuple(_variant(rung, causal) for rung in RUNGS for causal in (False, True)),
    make_inputs=ATTENTION.make_inputs,
    dispatcher_calls=_dispatcher_calls,
    flops=ATTENTION.flops,
    bytes=_bytes,
    test_shapes=(
        TestShape("less than a tile, odd everything", (2, 33, 2, 17)),
        TestShape("one tile exactly", (1, 64, 1, 64)),
        TestShape("one row more than two tiles, padded head_dim", (1, 129, 2, 72)),
        TestShape("no rows", (1, 0, 2, 8)),
        TestShape("no batch", (0, 5, 2, 8)),
    ),
    bench_shapes=((4, 1024, 8, 64), (1, 2048, 16, 128)),
    module=partial(LadderSelfAttention, heads=1),
)
