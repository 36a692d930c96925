# SPDX-License-Identifier: Apache-2.0
"""How flash_attention runs on DTensors: sharded over the batch or over heads, without communication.

Sequences stay whole: a DTensor that is sharded over rows is gathered first, and so are heads that the ranks
do not divide. The rules are registered at the first call that may need them: the import takes 0.05 s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch

Ways = list[tuple[list[Any], list[Any]]]
"""(placements of results, placements of arguments): each a way to run on every rank's own part."""


def register() -> None:
    """Tells DTensor about the ops, before the first call with tensors that may be some."""
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None:  # else the tensors are of another class
        _register(distributed)


@cache
def _register(distributed: Any) -> None:
    experimental = import_module("torch.distributed.tensor.experimental")
    for name, rule in RULES.items():
        op = getattr(torch.ops.profiling_lab, name).default
        experimental.register_sharding(op)(partial(rule, distributed))


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


RULES: dict[str, Callable[..., Ways]] = {"attention_fwd": _forward, "attention_bwd": _backward}
"""By the name in the schema."""
