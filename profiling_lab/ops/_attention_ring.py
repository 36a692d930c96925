# SPDX-License-Identifier: Apache-2.0
"""Attention whose keys are in parts: merged by their log-sum-exp, in one process or over a ring of them.

With (out_i, lse_i) the attention to part i alone, lse = log sum_i exp(lse_i) and out = sum_i exp(lse_i - lse)
out_i. The backward needs no merging: with the whole lse, exp(scores - lse) are the whole softmax's
probabilities, so each part's gradients are final.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, distributed

from profiling_lab.ops import explain
from profiling_lab.ops._calls import overload
from profiling_lab.ops._registration import cast_all, sums_of

SLUG = "ring_attention"


def merge_attention(outs: list[Tensor], lses: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The attention of the same queries to all keys, from that to each part of the keys.

    outs and lses are what flash_attention(..., return_lse=True) gives for each part, (batch, rows, heads,
    head_dim) and (batch, heads, rows), or both without batch. Returns out, of the dtype of outs, and lse,
    both differentiable to any order. A row that sees no key in any part gives out 0 and lse -inf. A sink is
    given with one part only.
    """
    if not outs or len(outs) != len(lses):
        raise ValueError(
            f"merge_attention: {len(outs)} outs and {len(lses)} lses, expected as many, one or more"
        )
    for out, one in zip(outs, lses, strict=True):
        if one.shape != (*out.shape[:-3], out.shape[-2], out.shape[-3]):
            raise ValueError(
                f"merge_attention: an lse has shape {list(one.shape)} and its out {list(out.shape)}, "
                "expected (batch, heads, rows) and (batch, rows, heads, head_dim)"
            )
    every = torch.stack(lses)
    # Where no part is seen, all are -inf: the difference to that would be NaN, also in the gradient.
    seen = (every != -math.inf).any(0)
    lse = every.where(seen, 0).logsumexp(0).where(seen, -math.inf)
    weights = (every - lse.where(seen, 0)).exp().transpose(-1, -2)[..., None]
    out = sum(weight * part for weight, part in zip(weights, outs, strict=True))
    return cast(Tensor, out).to(outs[0].dtype), lse


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: Any = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    deterministic: bool = False,
) -> Any:
    """flash_attention of a sequence that is spread over the processes of a group, for context parallel.

    Each process has the same number of consecutive rows of q, k and v, those of the first process first, and
    gets the rows of the result that belong to its queries. Shapes, dtypes and options are flash_attention's.
    Keys and values go around a ring while each process computes with those it has: it holds two parts at a
    time, and no process ever has the whole sequence. Gradients are first gradients, and of lse, too.

    causal: the process with the first rows attends to one part, the one with the last rows to all; the
    others wait for it. Raises ValueError for numbers of rows that differ between q and k.
    """
    if q.dim() != 4 or k.dim() != 4 or q.shape[1] != k.shape[1]:
        raise ValueError(
            f"{SLUG}: q has shape {list(q.shape)} and k {list(k.shape)}, expected (batch, rows, heads, "
            "head_dim) with the same number of rows"
        )
    if explain.ON:
        explain.say(
            f"{SLUG}: flash_attention of each part, over {distributed.get_world_size(group)} processes"
        )
    if torch.is_autocast_enabled(q.device.type):
        q, k, v = cast_all(torch.get_autocast_dtype(q.device.type), (q, k, v))
    factor = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    out, lse = _Ring.apply(q, k, v, group, causal, factor, float(softcap), deterministic)
    return (out, lse) if return_lse else out


class _Ring(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Any, causal: bool, *options: Any) -> Any:
        scale, softcap, deterministic = options
        ctx.group, ctx.causal, ctx.options = group, causal, options
        out: Any = None
        lse: Any = None
        for hops, (keys, values) in enumerate(_around((k, v), group)):
            right = _right(hops, group, causal)
            if right is None:
                continue
            rest = (None, None, None, scale, -1, right, softcap, deterministic)
            part, of_part = overload("attention_fwd")(q, keys, values, *rest)
            if out is None:
                out, lse = part.to(sums_of(q.dtype)), of_part
            else:
                out, lse = merge_attention([out, part], [lse, of_part])
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]  # torch is untyped here
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        scale, softcap, deterministic = ctx.options
        dq, dk, dv = (torch.zeros_like(t, dtype=sums_of(t.dtype)) for t in (q, k, v))
        for hops, (keys, values) in enumerate(_around((k, v), ctx.group)):
            right = _right(hops, ctx.group, ctx.causal)
            if right is not None:
                given = (dout, dlse, q, keys, values, out, lse)
                rest = (None, None, None, scale, -1, right, softcap, deterministic)
                grads = overload("attention_bwd")(*given, *rest)
                for total, grad in zip((dq, dk, dv), grads, strict=False):
                    total += grad
            dk, dv = _arrived(*_passed_on((dk, dv), ctx.group))  # home after as many hops as processes
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), *(None,) * 5


def _right(hops: int, group: Any, causal: bool) -> int | None:
    """The limit of attention to keys that have made this number of hops; None where none is seen."""
    if not causal or 0 < hops <= distributed.get_rank(group):
        return -1
    return 0 if hops == 0 else None


def _around(tensors: tuple[Tensor, ...], group: Any) -> Iterator[tuple[Tensor, ...]]:
    """Each process's tensors, its own first; the next ones are on their way while these are used."""
    tensors = tuple(t.contiguous() for t in tensors)
    for left in range(distributed.get_world_size(group) - 1, -1, -1):
        arriving = _passed_on(tensors, group) if left else None
        yield tensors
        if arriving is not None:
            tensors = _arrived(*arriving)


def _passed_on(tensors: tuple[Tensor, ...], group: Any) -> tuple[tuple[Tensor, ...], list[Any]]:
    """What the process behind sends while this one sends `tensors` ahead, and what to wait for."""
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    ahead, behind = ((rank + step) % size for step in (1, -1))
    if group is not None:
        ahead, behind = (distributed.get_global_rank(group, peer) for peer in (ahead, behind))
    arriving = tuple(torch.empty_like(t) for t in tensors)
    if size == 1:
        for t, copy in zip(tensors, arriving, strict=True):
            copy.copy_(t)
        return arriving, []
    operations = [
        distributed.P2POp(way, t, peer, group, tag)
        for way, peer, those in (
            (distributed.isend, ahead, tensors),
            (distributed.irecv, behind, arriving),
        )
        for tag, t in enumerate(those)
    ]
    return arriving, distributed.batch_isend_irecv(operations)


def _arrived(tensors: tuple[Tensor, ...], works: list[Any]) -> tuple[Tensor, ...]:
    for work in works:
        work.wait()
    return tensors
