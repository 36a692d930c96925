# SPDX-License-Identifier: Apache-2.0
"""flash_attention_with_cache: attention of new rows to keys in a cache that stays where it is."""

from __future__ import annotations

import math
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

from profiling_lab.ops import explain, flops
from profiling_lab.ops._attention_in_torch import Window, window_of
from profiling_lab.ops._load import has_cuda_kernels
from profiling_lab.ops._registration import check_alike, check_dtype, sums_of

SLUG = "flash_attention_with_cache"
_HAS_CUDA_KERNELS = has_cuda_kernels()
_IS_PORTABLE = os.environ.get("PROFILING_LAB_ATTENTION_PATH") == "sm80"
"""read once, as csrc/ops/attention/dispatch_cuda.cpp reads it"""


def flash_attention_with_cache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    cache_seqlens: Tensor,
    block_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    causal: bool = True,
    scale: float | None = None,
    window: Window = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """Append k and v to a cache, in place, and return the attention of q to all keys of its sequence.

    q is (batch, rows, heads, head_dim). Without block_table the caches are (batch, room, kv_heads, head_dim);
    with it they are (pages, page_size, kv_heads, head_dim), of any page size, and block_table, int32 (batch,
    pages of a sequence), names the pages of each sequence in order. k and v, (batch, new rows, kv_heads,
    head_dim), are the keys to append; without them the cache is only read.

    cache_seqlens, int32 (batch), are the keys that each sequence has in the cache before the call, and do not
    change. The host reads neither them nor block_table, so one CUDA graph serves a whole generation. A
    length with which k would not fit counts as the largest one with which it does; numbers of pages are not
    checked. Sequences must not share the pages that are written.

    cu_seqlens_q, int32 offsets (batch + 1), is for sequences with different numbers of rows: parts of prompts
    and single rows in one call. q is then (rows of all sequences, heads, head_dim), sequence b owns rows
    [cu[b], cu[b + 1]), and k and v, if given, have the same rows: each query row is a new key. Rows behind
    the last offset give 0. The host does not read the offsets either.

    causal, scale, window, softcap, sink and return_lse are those of flash_attention; a sequence's last query
    sees its last key. No gradients. dtypes and head dims are those of flash_attention, too.

    On compute capability 9.0 sequences of up to 16 rows take the decode kernel, which shares the keys of a
    sequence out among several blocks; longer ones take the kernels of flash_attention. With cu_seqlens_q
    both are launched, unless there are no more than 16 rows in all: where every sequence has one row, pass
    q as (batch, 1, heads, head_dim). Elsewhere, and on the CPU, plain torch with memory for all scores,
    which reads cu_seqlens_q. Raises ValueError for what does not fit together.
    """
    if torch.is_grad_enabled():
        _check_gradients(q, k_cache, v_cache, k, v)
    if hasattr(q, "placements"):
        raise ValueError(f"{SLUG}: q is a DTensor, expected each rank's own part, x.to_local()")
    has_kernel = has_hopper_kernels(q)
    if not has_kernel:  # the op checks its own arguments
        _check(q, k_cache, v_cache, k, v, cache_seqlens, block_table, cu_seqlens_q, sink, softcap)
    if explain.ON:
        how = "ours, sm90 kernel" if has_kernel else "plain torch, with memory for all scores"
        explain.say(f"{SLUG}: {how}, {str(q.dtype)[6:]} on {q.device.type}")
    left, right = window_of(window, causal)
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1))
    if sink is not None:
        sink = sink.to(sums_of(q.dtype)).contiguous()
    run = torch.ops.profiling_lab.cached_attention if has_kernel else in_torch
    out, lse = run(
        q,
        k_cache,
        v_cache,
        cache_seqlens,
        block_table,
        k,
        v,
        cu_seqlens_q,
        sink,
        float(scale),
        left,
        right,
        float(softcap),
    )
    return (out, lse) if return_lse else out


def has_hopper_kernels(q: Tensor) -> bool:
    """Whether its device has the kernels that only compute capability 9.0 has."""
    return q.is_cuda and _HAS_CUDA_KERNELS and not _IS_PORTABLE and _is_hopper(q.device.index or 0)


@cache
def _is_hopper(device: int) -> bool:
    return bool(torch.cuda.get_device_capability(device) == (9, 0))


def _check_gradients(*tensors: Tensor | None) -> None:
    if any(x is not None and x.requires_grad for x in tensors):
        raise ValueError(f"{SLUG}: has no gradients, but a tensor requires one; use torch.no_grad()")


def _check(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    lengths: Tensor,
    table: Tensor | None,
    cu_q: Tensor | None,
    sink: Tensor | None,
    softcap: float,
) -> None:
    """What attention.cpp checks, for what never reaches it."""
    if (k is None) != (v is None):
        raise ValueError(f"{SLUG}: k and v are given together or not at all")
    given = {"q": q, "k_cache": k_cache, "v_cache": v_cache} | ({} if k is None else {"k": k, "v": v})
    check_alike(SLUG, **given)
    check_dtype(SLUG, q)
    for name, x in given.items():
        dims = 4 if cu_q is None or name.endswith("cache") else 3
        if x.dim() != dims:
            expected = "four dimensions" if dims == 4 else "(rows, heads, head_dim) with cu_seqlens_q"
            raise ValueError(f"{SLUG}: {name} has shape {list(x.shape)}, expected {expected}")
    if cu_q is not None and (cu_q.dtype != torch.int32 or cu_q.dim() != 1 or cu_q.shape[0] < 1):
        raise ValueError(
            f"{SLUG}: cu_seqlens_q is {str(cu_q.dtype)[6:]} of shape {list(cu_q.shape)}, expected int32 of "
            "shape (batch + 1)"
        )
    heads, dim = q.shape[-2:]
    batch, rows = (q.shape[0], q.shape[1]) if cu_q is None else (cu_q.shape[0] - 1, 1)
    kv_heads = k_cache.shape[2]
    if rows < 1 or (q.is_cuda and q.dtype == torch.float32):
        what = "q has no rows" if rows < 1 else "dtype float32 is not supported on CUDA"
        raise ValueError(f"{SLUG}: {what}")
    if k_cache.shape != v_cache.shape or k_cache.shape[3] != dim:
        raise ValueError(
            f"{SLUG}: k_cache has shape {list(k_cache.shape)} and v_cache {list(v_cache.shape)}, expected "
            f"({'batch' if table is None else 'pages'}, keys, kv_heads, {dim}) for both"
        )
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"{SLUG}: q has {heads} heads, not a multiple of the {kv_heads} heads of k_cache")
    if table is None and k_cache.shape[0] != batch:
        raise ValueError(f"{SLUG}: k_cache has batch {k_cache.shape[0]} but q has {batch}")
    for name, x, dims in (("cache_seqlens", lengths, 1), ("block_table", table, 2)):
        if x is not None and (x.dtype != torch.int32 or x.dim() != dims or x.shape[0] != batch):
            raise ValueError(
                f"{SLUG}: {name} is {str(x.dtype)[6:]} of shape {list(x.shape)}, expected int32 of shape "
                f"({batch}{')' if dims == 1 else ', pages)'}"
            )
    for name, x in (("cache_seqlens", lengths), ("block_table", table), ("cu_seqlens_q", cu_q)):
        if x is not None and x.device != q.device:
            raise ValueError(f"{SLUG}: {name} is on {x.device} but q is on {q.device}")
    if k is not None and v is not None:
        room = k_cache.shape[1] * (1 if table is None else table.shape[1])
        if k.shape != v.shape or k.shape[0] != q.shape[0] or k.shape[-2:] != k_cache.shape[2:]:
            count = f"{batch}, new rows" if cu_q is None else f"{q.shape[0]}"
            raise ValueError(
                f"{SLUG}: k has shape {list(k.shape)} and v {list(v.shape)}, expected "
                f"({count}, {kv_heads}, {dim}) for both"
            )
        if cu_q is None and k.shape[1] > room:
            raise ValueError(f"{SLUG}: k has {k.shape[1]} rows, a sequence has room for {room} keys")
    if sink is not None and sink.shape != (heads,):
        raise ValueError(f"{SLUG}: sink has shape {list(sink.shape)} but q has {heads} heads")
    if softcap < 0:
        raise ValueError(f"{SLUG}: softcap is {softcap:g}, expected 0 (off) or a positive number")


def in_torch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    table: Tensor | None,
    k: Tensor | None,
    v: Tensor | None,
    cu_q: Tensor | None,
    sink: Tensor | None,
    scale: float,
    left: int,
    right: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """The op in plain torch: the truth of its tests, and what runs where it has no kernel."""
    batch, page, device = lengths.shape[0], k_cache.shape[1], q.device
    if table is None:
        table = torch.arange(batch, device=device, dtype=torch.int32)[:, None]
    table, room = table.long(), page * table.shape[1]
    if cu_q is None:
        rows = torch.full_like(lengths, q.shape[1])
        added = torch.zeros_like(lengths) if k is None else torch.full_like(lengths, k.shape[1])
    else:
        rows = cu_q.diff()
        added = torch.zeros_like(lengths) if k is None else rows
    kept = torch.minimum(lengths, room - added).clamp(min=0)
    if k is not None and v is not None:
        if cu_q is None:
            of = torch.arange(batch, device=device)[:, None].expand(k.shape[:2]).flatten()
            own = torch.arange(k.shape[1], device=device).expand(k.shape[:2]).flatten()
            k, v = k.flatten(0, 1), v.flatten(0, 1)
        else:
            of, own = _owners(cu_q, k.shape[0])
        _append((k_cache, v_cache), (k, v), of, kept[of.clamp(max=batch - 1)] + own, table, of < batch)
    total = (kept + added).clamp(max=room)
    if cu_q is None:
        return _attend(q, k_cache, v_cache, total, rows, table, sink, scale, left, right, softcap)
    most = q.shape[0] if torch.compiler.is_compiling() else int(rows.max()) if batch else 0
    at = cu_q[:-1, None] + torch.arange(most, device=device)
    padded = q[at.clamp(max=max(q.shape[0] - 1, 0))]
    out, lse = _attend(padded, k_cache, v_cache, total, rows, table, sink, scale, left, right, softcap)
    of, own = _owners(cu_q, q.shape[0])
    behind, of = of >= batch, of.clamp(max=batch - 1)
    own = torch.where(behind, 0, own)
    out = out[of, own].masked_fill(behind[:, None, None], 0)
    return out, lse[of, :, own].masked_fill(behind[:, None], -math.inf).transpose(0, 1).contiguous()


def _owners(cu: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Of each row: its sequence, or their number where no sequence owns it, and its place there."""
    row = torch.arange(rows, device=cu.device, dtype=cu.dtype)
    of = torch.searchsorted(cu[1:].contiguous(), row, right=True)
    return of, row - cu[of]


def _append(
    caches: tuple[Tensor, ...], new: tuple[Tensor, ...], of: Tensor, key: Tensor, table: Tensor, owned: Tensor
) -> None:
    """Writes each row of `new` to key `key` of sequence `of`, if that owns the row and has room for it."""
    if not new[0].shape[0]:
        return
    page = caches[0].shape[1]
    fits = owned & (key < page * table.shape[1])
    row = torch.arange(len(of), device=of.device)
    row = torch.where(fits, row, fits.int().argmax())  # the others write what one that fits writes, too
    any_fits, of, key = fits.any(), of[row].clamp(max=len(table) - 1), key[row]
    key = torch.where(any_fits, key, 0)
    pages = table[of, key // page]
    for cached, x in zip(caches, new, strict=True):
        cached[pages, key % page] = torch.where(any_fits, x[row], cached[pages, key % page])


def _attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    total: Tensor,
    rows: Tensor,
    table: Tensor,
    sink: Tensor | None,
    scale: float,
    left: int,
    right: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """q, (batch, rows, heads, head_dim), of which `rows` count, to the first `total` keys of a sequence."""
    wide, device, group = sums_of(q.dtype), q.device, q.shape[2] // k_cache.shape[2]
    total, rows = total[:, None, None], rows[:, None, None]
    i = torch.arange(q.shape[1], device=device)[None, :, None] + total - rows
    j = torch.arange(k_cache.shape[1] * table.shape[1], device=device)[None, None, :]
    used = (j < total)[:, 0, :, None, None]
    seen = (j < total).expand(-1, q.shape[1], -1)
    if left >= 0:
        seen = seen & (j >= i - left)
    if right >= 0:
        seen = seen & (j <= i + right)

    def keys(cached: Tensor) -> Tensor:
        x = torch.where(used, cached[table].flatten(1, 2), 0)  # what is not used may be NaN
        return x.to(wide).repeat_interleave(group, 2).transpose(1, 2)

    scores = q.to(wide).transpose(1, 2) @ keys(k_cache).transpose(2, 3) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen[:, None], -math.inf)
    lse = scores.logsumexp(3)
    if sink is not None:
        lse = torch.logaddexp(lse, sink.to(wide)[None, :, None])
    weights = torch.exp(scores - torch.where(lse == -math.inf, 0, lse)[..., None])
    return (weights @ keys(v_cache)).transpose(1, 2).to(q.dtype).contiguous(), lse


def _fake(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    table: Tensor | None,
    k: Tensor | None,
    v: Tensor | None,
    cu_q: Tensor | None,
    sink: Tensor | None,
    scale: float,
    left: int,
    right: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    _check(q, k_cache, v_cache, k, v, lengths, table, cu_q, sink, softcap)
    rows = (q.shape[0], q.shape[2], q.shape[1]) if cu_q is None else (q.shape[1], q.shape[0])
    return q.new_empty(q.shape), q.new_empty(rows, dtype=sums_of(q.dtype))


torch.library.register_fake("profiling_lab::cached_attention", _fake)
flops.register("cached_attention")
