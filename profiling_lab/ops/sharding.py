# SPDX-License-Identifier: Apache-2.0
"""How the ops run on DTensors: each rank on its own part where that gives the same, without communication.

Attention is sharded over the batch or over heads, layer_norm_gelu and heavy_layer over every dimension but
the last; what is sharded otherwise is gathered first. Gradients of what all ranks share (weights, the sink)
are Partial: sums over ranks that are still to be made. heavy_layer with sharded weights is plain torch, whose
products DTensor knows how to split. The rules are registered at the first call that may need them: the
import takes 0.05 s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch

Ways = list[tuple[list[Any], list[Any]]]
"""(placements of results, placements of arguments): each a way to run on every rank's own part."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch is untyped here
def register() -> None:
    """Tells DTensor about the ops, before the first call with tensors that may be some."""
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is None or not _unknown:  # None: the tensors are of another class
        return
    experimental = import_module("torch.distributed.tensor.experimental")
    for name in [name for name in _unknown if hasattr(torch.ops.profiling_lab, name)]:
        op = getattr(torch.ops.profiling_lab, name).default  # one of them is defined by a module of its own
        experimental.register_sharding(op)(partial(_unknown.pop(name), distributed))


def splits(weights: tuple[Any, ...]) -> bool:
    """Whether one of them is a DTensor of which no rank has all."""
    return any(not p.is_replicate() for t in weights for p in getattr(t, "placements", ()))


def _attention_ways(distributed: Any, q: Any, k: Any, sink: Any, packed: bool) -> list[dict[str, Any]]:
    """Where q, k and v are sharded, and with them lse, the sink and the sink's gradient."""
    Shard, Replicate, Partial = distributed.Shard, distributed.Replicate, distributed.Partial
    none = Replicate()  # the sink's gradient without a sink has no elements
    ways = [{"qkv": Replicate(), "lse": Replicate(), "sink": Replicate(), "dsink": Replicate()}]
    heads = len(q.shape) - 2
    if k.shape[heads] % q.mesh.size() == 0:  # each rank has the key heads that its query heads read
        dsink = none if sink is None else Shard(0)
        ways.append({"qkv": Shard(heads), "lse": Shard(heads - 1), "sink": Shard(0), "dsink": dsink})
    if not packed:
        dsink = none if sink is None else Partial()
        ways.append({"qkv": Shard(0), "lse": Shard(0), "sink": Replicate(), "dsink": dsink})
    return ways


def _forward(
    distributed: Any, q: Any, k: Any, v: Any, sink: Any, cu_q: Any, cu_k: Any, *options: Any
) -> Ways:
    rest = [None] * len(options)
    whole = [None if offsets is None else distributed.Replicate() for offsets in (cu_q, cu_k)]
    return [
        (
            [way["qkv"], way["lse"]],
            [way["qkv"]] * 3 + [None if sink is None else way["sink"], *whole, *rest],
        )
        for way in _attention_ways(distributed, q, k, sink, cu_q is not None)
    ]


def _backward(
    distributed: Any,
    dout: Any,
    dlse: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    sink: Any,
    cu_q: Any,
    cu_k: Any,
    *options: Any,
) -> Ways:
    rest = [None] * len(options)
    whole = [None if offsets is None else distributed.Replicate() for offsets in (cu_q, cu_k)]
    ways: Ways = []
    for way in _attention_ways(distributed, q, k, sink, cu_q is not None):
        qkv, of_rows = way["qkv"], way["lse"]
        given = [qkv, None if dlse is None else of_rows, qkv, qkv, qkv, qkv, of_rows]
        given += [None if sink is None else way["sink"], *whole, *rest]
        ways.append(([qkv, qkv, qkv, way["dsink"]], given))
    return ways


def _ladder(distributed: Any, q: Any, k: Any, v: Any, *options: Any) -> Ways:
    return [([at], [at] * 3 + [None] * len(options)) for at in _batch_or_heads(distributed, q)]


def _ladder_backward(distributed: Any, dout: Any, q: Any, k: Any, v: Any, *options: Any) -> Ways:
    return [([at] * 3, [at] * 4 + [None] * len(options)) for at in _batch_or_heads(distributed, q)]


def _batch_or_heads(distributed: Any, q: Any) -> list[Any]:
    return [distributed.Replicate(), distributed.Shard(0), distributed.Shard(2)]


def _rows(distributed: Any, x: Any) -> list[tuple[Any, Any, Any]]:
    """Placements of x, of its statistics (2, ...), and of gradients that are sums over its rows."""
    Shard, Replicate, Partial = distributed.Shard, distributed.Replicate, distributed.Partial
    ways = [(Shard(dim), Shard(dim + 1), Partial()) for dim in range(len(x.shape) - 1)]
    return [(Replicate(), Replicate(), Replicate()), *ways]


def _norm(distributed: Any, x: Any, weight: Any, bias: Any, *options: Any) -> Ways:
    return _norm_of([x], distributed, bias, len(options))


def _norm_residual(distributed: Any, x: Any, residual: Any, weight: Any, bias: Any, *options: Any) -> Ways:
    return _norm_of([x, residual], distributed, bias, len(options))


def _norm_of(rows: list[Any], distributed: Any, bias: Any, options: int) -> Ways:
    """As many results of x's shape as there are inputs of it, and the statistics."""
    whole = distributed.Replicate()
    vectors = [whole, None if bias is None else whole]
    return [
        ([at] * len(rows) + [statistics], [at] * len(rows) + vectors + [None] * options)
        for at, statistics, _ in _rows(distributed, rows[0])
    ]


def _norm_backward(
    distributed: Any,
    dy: Any,
    x: Any,
    weight: Any,
    bias: Any,
    statistics: Any,
    approximate: str,
    dsum: Any = None,
) -> Ways:
    whole = distributed.Replicate()
    of_bias = None if bias is None else whole
    return [
        ([at, sums, sums], [at, at, whole, of_bias, of_rows, None, None if dsum is None else at])
        for at, of_rows, sums in _rows(distributed, x)
    ]


def _heavy(distributed: Any, x: Any, *others: Any) -> Ways:
    weights, options = [distributed.Replicate()] * 4, [None] * (len(others) - 4)
    return [([at], [at, *weights, *options]) for at, _, _ in _rows(distributed, x)]


def _heavy_backward(distributed: Any, dy: Any, x: Any, *others: Any) -> Ways:
    weights, options = [distributed.Replicate()] * 4, [None] * (len(others) - 5)
    return [([at, *[sums] * 4], [at, at, *weights, at, *options]) for at, _, sums in _rows(distributed, x)]


RULES: dict[str, Callable[..., Ways]] = {
    "attention_fwd": _forward,
    "attention_bwd": _backward,
    "ladder_attention": _ladder,
    "ladder_attention_backward": _ladder_backward,
    "layer_norm_gelu": _norm,
    "layer_norm_gelu_residual": _norm_residual,
    "layer_norm_gelu_backward": _norm_backward,
    "heavy_layer_fast": _heavy,
    "heavy_layer_slow": _heavy,
    "heavy_layer_backward": _heavy_backward,
}
"""By the name in the schema."""

_unknown = dict(RULES)
"""Those that DTensor has not been told about."""
