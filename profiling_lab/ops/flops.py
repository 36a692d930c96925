# SPDX-License-Identifier: Apache-2.0
"""What torch.utils.flop_counter.FlopCounterMode counts for the ops, so that MFU stays when a model switches.

An op counts what torch counts for the same mathematics without it:
- attention as scaled_dot_product_attention: every pair of a query and a key, masked or not, so causal masks
  and windows do not change the number. The backward computes the scores again: five products to the forward's
  two. Sequences by cu_seqlens count with their own lengths, grouped queries per query head.
- heavy_layer as the products that the formula has, whatever an implementation saves.
- layer_norm_gelu not at all: torch counts GEMMs and convolutions only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from profiling_lab._import_watch import when_imported

_COUNTER = "torch.utils.flop_counter"  # its import takes 0.25 s where Triton is installed, so it is not ours


def register(name: str) -> None:
    """Tells torch's counter about the op of this name, now or when the program imports the counter."""
    formula = FORMULAS.get(name)  # a test says that none is missing
    if formula is not None:
        when_imported(partial(_register, name, formula), _COUNTER)


def _register(name: str, formula: Callable[..., int], counter: Any) -> None:
    packet = getattr(torch.ops.profiling_lab, name)
    if packet not in counter.flop_registry:
        counter.register_flop_formula(packet, get_raw=True)(formula)


def _pairs(q: Tensor, k: Tensor, cu_q: Tensor | None, cu_k: Tensor | None) -> int:
    """Queries times keys of all sequences."""
    if cu_q is None or cu_k is None:
        return int(q.shape[0] * q.shape[1] * k.shape[1])
    sequences = cu_q.shape[0] - 1
    if cu_q.is_meta or type(cu_q) is not Tensor:  # unknown lengths are taken as equal
        return int(q.shape[0] * k.shape[0] // max(sequences, 1))
    lengths = zip(cu_q.diff().tolist(), cu_k.diff().tolist(), strict=True)
    return sum(rows * keys for rows, keys in lengths)


def _products(q: Tensor, v: Tensor, pairs: int, over_keys: int, over_values: int) -> int:
    """FLOPs of `over_keys` products with the head_dim of q and k, and `over_values` with that of v."""
    return int(2 * pairs * q.shape[-2] * (over_keys * q.shape[-1] + over_values * v.shape[-1]))


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Any = None,
    cu_q: Tensor | None = None,
    cu_k: Tensor | None = None,
    *_: Any,
    **__: Any,
) -> int:
    return _products(q, v, _pairs(q, k, cu_q, cu_k), 1, 1)  # q k^T, p v


def _attention_backward(
    dout: Tensor,
    dlse: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Any,
    lse: Any,
    sink: Any = None,
    cu_q: Tensor | None = None,
    cu_k: Tensor | None = None,
    *_: Any,
    **__: Any,
) -> int:
    return _products(q, v, _pairs(q, k, cu_q, cu_k), 3, 2)  # q k^T, ds k, ds^T q; do v^T, p^T do


def _attention_cache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    table: Tensor | None,
    k: Any = None,
    v: Any = None,
    cu_q: Tensor | None = None,
    *_: Any,
    **__: Any,
) -> int:
    room = int(k_cache.shape[1] * (1 if table is None else table.shape[1]))
    if cu_q is None:
        new = 0 if k is None else k.shape[1]
        keys = q.shape[0] * room if _is_unknown(lengths) else int(lengths.sum()) + new * q.shape[0]
        return _products(q, v_cache, q.shape[1] * keys, 1, 1)
    if _is_unknown(lengths) or _is_unknown(cu_q):
        return _products(q, v_cache, q.shape[0] * room, 1, 1)
    rows = cu_q.diff()
    pairs = int((rows * (lengths + (0 if k is None else rows))).sum())
    return _products(q, v_cache, pairs, 1, 1)


def _is_unknown(lengths: Tensor) -> bool:
    """Then they are taken as the room for them."""
    return lengths.is_meta or type(lengths) is not Tensor


def _attention_blocks(
    q: Tensor, k: Tensor, v: Tensor, sink: Any, counts: Tensor, blocks: Tensor, *_: Any, **__: Any
) -> int:
    """Blocks that are listed count, seen in part or whole; all of them, if their numbers are not known."""
    tiles = counts.shape[2]
    listed = counts.numel() * blocks.shape[3] if _is_unknown(counts) else int(counts.sum())
    each = q.shape[0] * q.shape[2] // max(counts.shape[0] * counts.shape[1], 1)  # that share a list
    pairs = listed * each * 128 * -(-q.shape[1] // max(tiles, 1))
    return _products(q[..., :1, :], v[..., :1, :], pairs, 1, 1)


def _ladder(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    return _attention(q, k, v)


def _ladder_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    return _attention_backward(dout, None, q, k, v, None, None)


def _heavy(x: Tensor, *_: Any, **__: Any) -> int:
    return 3 * 2 * int(x.numel() * x.shape[-1])


def _heavy_backward(dy: Tensor, *_: Any, **__: Any) -> int:
    return 6 * 2 * int(dy.numel() * dy.shape[-1])


FORMULAS: dict[str, Callable[..., int] | None] = {
    "attention_fwd": _attention,
    "attention_bwd": _attention_backward,
    "attention_fwd_blocks": _attention_blocks,
    "cached_attention": _attention_cache,
    "ladder_attention": _ladder,
    "ladder_attention_backward": _ladder_backward,
    "heavy_layer_slow": _heavy,
    "heavy_layer_fast": _heavy,
    "heavy_layer_fast_keeping": _heavy,
    "heavy_layer_backward": _heavy_backward,
    "layer_norm_gelu": None,
    "layer_norm_gelu_backward": None,
    "layer_norm_gelu_residual": None,
}
"""By the name in the schema; None where torch counts nothing either."""
