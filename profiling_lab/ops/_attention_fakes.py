# SPDX-License-Identifier: Apache-2.0
"""flash_attention's results without data for torch.compile, torch.export and meta tensors, and its checks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from profiling_lab.ops._registration import check_alike, check_dtype, sums_of

SLUG = "flash_attention"


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    softcap: float,
) -> None:
    """The checks of attention.cpp, in its words, for the paths that never reach it, but not of data."""
    check_alike(SLUG, q=q, k=k, v=v)
    if (cu_q is None) != (cu_k is None):
        raise ValueError(f"{SLUG}: cu_seqlens_q and cu_seqlens_k are given together or not at all")
    expected = "(batch, rows, heads, head_dim)" if cu_q is None else "(rows, heads, head_dim) with cu_seqlens"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != (4 if cu_q is None else 3):
            raise ValueError(f"{SLUG}: {name} has shape {list(x.shape)}, expected {expected}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"{SLUG}: v has shape {list(v.shape)} but k has shape {list(k.shape)}")
    heads, kv_heads, dim = q.shape[-2], k.shape[-2], q.shape[-1]
    if cu_q is None and isinstance(q.shape[0], int) and q.shape[0] >= 1 << 31:  # symbols need no guard for it
        raise ValueError(f"{SLUG}: {q.shape[0]} batches, expected fewer than 2^31")
    if isinstance(heads, int) and heads >= 1 << 31:
        raise ValueError(f"{SLUG}: {heads} heads, expected fewer than 2^31")
    if k.shape[-1] != dim:
        raise ValueError(f"{SLUG}: k has head_dim {k.shape[-1]} but q has {dim}")
    if cu_q is None and k.shape[0] != q.shape[0]:
        raise ValueError(f"{SLUG}: k has batch {k.shape[0]} but q has {q.shape[0]}")
    if heads % kv_heads if kv_heads > 0 else heads:
        raise ValueError(f"{SLUG}: q has {heads} heads, not a multiple of the {kv_heads} heads of k")
    check_dtype(SLUG, q)
    if q.is_cuda and q.dtype == torch.float32:
        raise ValueError(f"{SLUG}: dtype float32 is not supported on CUDA; expected bfloat16 or float16")
    for one in (dim, v.shape[-1]):
        if q.is_cuda and (one % 8 or not 8 <= one <= 256):
            raise ValueError(f"{SLUG}: head_dim is {one}, expected a multiple of 8 from 8 to 256 on CUDA")
        if one < 1:
            raise ValueError(f"{SLUG}: head_dim is 0")
    if sink is not None:
        statistics = sums_of(q.dtype)
        if sink.dtype != statistics:
            theirs, ours = str(sink.dtype)[6:], str(statistics)[6:]
            raise ValueError(f"{SLUG}: sink has dtype {theirs}, expected {ours}")
        if sink.dim() != 1 or sink.shape[0] != heads:
            raise ValueError(f"{SLUG}: sink has shape {list(sink.shape)} but q has {heads} heads")
    for name, cu in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        if cu is not None and cu.dtype != torch.int32:
            raise ValueError(f"{SLUG}: {name} has dtype {str(cu.dtype)[6:]}, expected int32")
        if cu is not None and (cu.dim() != 1 or cu.numel() < 1):
            raise ValueError(f"{SLUG}: {name} is not a contiguous vector of batch + 1 offsets")
    if cu_q is not None and cu_k is not None and cu_q.numel() != cu_k.numel():
        raise ValueError(
            f"{SLUG}: cu_seqlens_q has {cu_q.numel()} offsets but cu_seqlens_k has {cu_k.numel()}"
        )
    if softcap < 0:
        raise ValueError(f"{SLUG}: softcap is {softcap:g}, expected 0 (off) or a positive number")


def forward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    scale: float,
    left: int,
    right: int,
    softcap: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor]:
    _check(q, k, v, sink, cu_q, cu_k, softcap)
    rows = (q.shape[0], q.shape[2], q.shape[1]) if cu_q is None else (q.shape[1], q.shape[0])
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(rows, dtype=sums_of(q.dtype))


def backward_fake(
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
        q.new_empty((heads,), dtype=sums_of(q.dtype)),
    )
