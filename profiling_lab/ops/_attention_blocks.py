# SPDX-License-Identifier: Apache-2.0
"""flash_attention_with_block_mask: attention to the blocks of keys that a FlexAttention BlockMask names."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from profiling_lab.ops import explain, flops
from profiling_lab.ops._attention_cache import has_hopper_kernels
from profiling_lab.ops._block_mask import ALL, KEYS, NONE, ROWS, SLUG, BlockMaskTables, prepare_block_mask
from profiling_lab.ops._registration import cast_all, check_alike, check_dtype, sums_of

_TILE = 2 * ROWS  # rows, in plain torch
_PAIRS_AT_ONCE = 1 << 23  # numbers of a score matrix that plain torch makes at a time


def flash_attention_with_block_mask(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_mask: Any,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """Return flash_attention of q, k and v where row i sees key j if, and only if, the block mask says so.

    block_mask is FlexAttention's BlockMask, made for these numbers of rows and keys. Its lists of blocks
    are read as they are; its mask_mod is evaluated on the blocks that are seen in part, in each call, and
    nothing is remembered. prepare_block_mask does that once for many calls: pass what it returns. It has
    one mask or one for each batch and for each head.

    q, (batch, rows, heads, head_dim), k, v, scale, softcap, sink and return_lse are those of
    flash_attention, dtypes and head dims too. A row that sees nothing gives out 0, lse -inf (or the sink)
    and gradients 0.

    The forward is a kernel on compute capability 9.0, whose time follows the blocks that are listed. The
    backward, and everything elsewhere, is plain torch over these blocks alone, a number of tiles at a time:
    about 200 MB besides what it reads and writes, which it has in float32, too; derivatives beyond the first
    keep what that computes. Under autocast q, k and v are cast. Raises ValueError for what does not fit
    together.
    """
    tables = block_mask if isinstance(block_mask, BlockMaskTables) else prepare_block_mask(block_mask)
    if torch.is_autocast_enabled(q.device.type):
        q, k, v = cast_all(torch.get_autocast_dtype(q.device.type), (q, k, v))
    _check(q, k, v, tables, sink, softcap)
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1))
    if sink is not None:
        sink = sink.to(sums_of(q.dtype)).contiguous()
    if explain.ON:
        how = "ours, sm90 kernel" if has_hopper_kernels(q) else "plain torch, block by block"
        explain.say(f"{SLUG}: {how}, {str(q.dtype)[6:]} on {q.device.type}")
    out, lse = _Attention.apply(q, k, v, sink, tables, float(scale), float(softcap))
    return (out, lse) if return_lse else out


def _check(q: Tensor, k: Tensor, v: Tensor, tables: BlockMaskTables, sink: Tensor | None, cap: float) -> None:
    check_alike(SLUG, q=q, k=k, v=v)
    check_dtype(SLUG, q)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{SLUG}: {name} has shape {list(x.shape)}, expected four dimensions")
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(
            f"{SLUG}: k has shape {list(k.shape)} and v {list(v.shape)}, expected ({q.shape[0]}, keys, "
            f"kv_heads, head_dim) for both, for k with head_dim {q.shape[3]}"
        )
    if not k.shape[2] or q.shape[2] % k.shape[2]:
        raise ValueError(f"{SLUG}: q has {q.shape[2]} heads, not a multiple of the {k.shape[2]} heads of k")
    if (tables.rows, tables.keys) != (q.shape[1], k.shape[1]):
        raise ValueError(
            f"{SLUG}: block_mask is for {tables.rows} rows and {tables.keys} keys, but q has {q.shape[1]} "
            f"rows and k {k.shape[1]} keys"
        )
    for n, here, what in (
        (tables.parts.shape[0], q.shape[0], "batch"),
        (tables.parts.shape[1], q.shape[2], "heads"),
    ):
        if n not in (1, here):
            raise ValueError(f"{SLUG}: block_mask has {what} {n}, expected 1 or {here}")
    if tables.parts.device != q.device:
        raise ValueError(f"{SLUG}: block_mask is on {tables.parts.device} but q is on {q.device}")
    if q.is_cuda and q.dtype == torch.float32:
        raise ValueError(f"{SLUG}: dtype float32 is not supported on CUDA; expected bfloat16 or float16")
    if sink is not None and sink.shape != (q.shape[2],):
        raise ValueError(f"{SLUG}: sink has shape {list(sink.shape)} but q has {q.shape[2]} heads")
    if cap < 0:
        raise ValueError(f"{SLUG}: softcap is {cap:g}, expected 0 (off) or a positive number")


class _Attention(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sink: Tensor | None,
        tables: BlockMaskTables,
        scale: float,
        cap: float,
    ) -> tuple[Tensor, Tensor]:
        if has_hopper_kernels(q) and q.numel() and k.numel():
            tile = 192 if max(q.shape[3], v.shape[3]) <= 64 else 128  # attention.h, mask_tile_rows
            counts, blocks = tables.lists(tile)
            op = torch.ops.profiling_lab.attention_fwd_blocks
            out, lse = op(q, k, v, sink, counts, blocks, tables.bits, scale, cap)
        else:
            with torch.autocast(q.device.type, enabled=False):
                out, lse = _forward(q, k, v, sink, tables, scale, cap)
        ctx.save_for_backward(q, k, v, sink, out, lse)
        ctx.options = tables, scale, cap
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sink, out, lse = ctx.saved_tensors
        with torch.autocast(q.device.type, enabled=False):
            grads = _backward(dout, dlse, q, k, v, sink, out, lse, *ctx.options)
        return *grads, None, None, None


class _Tiles:
    """Tiles of 128 rows of all heads, flattened, with the blocks that each sees; some at a time."""

    def __init__(self, q: Tensor, k: Tensor, tables: BlockMaskTables) -> None:
        self.batch, self.rows, self.heads, _ = q.shape
        self.keys, self.group = k.shape[1], q.shape[2] // k.shape[2]
        self.tiles, self.blocks = -(-self.rows // _TILE), -(-self.keys // KEYS)
        self.counts, self.lists = tables.lists(_TILE)
        self.bits = tables.bits
        self.wide = sums_of(q.dtype)

    def of_rows(self, x: Tensor) -> Tensor:
        """(batch, rows, heads, d) as (tiles of all heads, 128, d), with zeros behind the last row."""
        x = x.to(self.wide).transpose(1, 2)
        x = torch.nn.functional.pad(x, (0, 0, 0, self.tiles * _TILE - self.rows))
        return x.reshape(-1, _TILE, x.shape[-1])

    def of_keys(self, x: Tensor) -> Tensor:
        """(batch, keys, kv_heads, d) as (blocks of all heads, 128, d), with zeros behind the last key."""
        x = x.to(self.wide).transpose(1, 2)
        x = torch.nn.functional.pad(x, (0, 0, 0, self.blocks * KEYS - self.keys))
        return x.reshape(-1, KEYS, x.shape[-1])

    def rows_of(self, tiles: Tensor, like: Tensor) -> Tensor:
        x = tiles.reshape(self.batch, self.heads, self.tiles * _TILE, tiles.shape[-1])[:, :, : self.rows]
        return x.transpose(1, 2).to(like.dtype).contiguous()

    def keys_of(self, blocks: Tensor, like: Tensor) -> Tensor:
        x = blocks.reshape(self.batch, self.heads // self.group, self.blocks * KEYS, blocks.shape[-1])[
            :, :, : self.keys
        ]
        return x.transpose(1, 2).to(like.dtype).contiguous()

    def some(self) -> Any:
        """Numbers of tiles, (n), of the blocks that they see, (n, m), and the pairs, (n, 128, 128 m)."""
        most = self.lists.shape[3]
        for tile in torch.arange(self.batch * self.heads * self.tiles, device=self.lists.device).split(
            max(_PAIRS_AT_ONCE // (most * _TILE * KEYS), 1)
        ):
            number, head = tile % self.tiles, tile // self.tiles % self.heads
            batch = tile // (self.tiles * self.heads)
            at = batch % self.lists.shape[0], head % self.lists.shape[1], number
            counted = torch.arange(most, device=tile.device) < self.counts[at][:, None]
            entries = self.lists[at]  # (n, most, 4)
            parts = torch.where(counted[..., None], entries[..., 1:3], NONE)
            words = self.bits[parts.clamp(min=0).long()]  # (n, most, 2, 64, 4)
            bit = (words[..., None] >> torch.arange(32, device=tile.device)) & 1
            seen = torch.where(
                parts[..., None, None] >= 0, bit.flatten(-2) != 0, parts[..., None, None] == ALL
            )
            seen = seen.flatten(2, 3).transpose(1, 2).flatten(2)
            block = torch.where(counted, entries[..., 0], 0).long()
            kv_head = batch * (self.heads // self.group) + head // self.group
            yield tile, kv_head[:, None] * self.blocks + block, seen

    def scores(self, q: Tensor, k: Tensor, seen: Tensor, scale: float, cap: float) -> Tensor:
        s = q @ k.transpose(1, 2) * scale
        if cap > 0:
            s = cap * torch.tanh(s / cap)
        return s.masked_fill(~seen, -math.inf)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, tables: BlockMaskTables, scale: float, cap: float
) -> tuple[Tensor, Tensor]:
    work = _Tiles(q, k, tables)
    queries, keys, values = work.of_rows(q), work.of_keys(k), work.of_keys(v)
    out = queries.new_zeros(*queries.shape[:2], v.shape[-1])
    lse = queries.new_full((*queries.shape[:2], 1), -math.inf)
    for tile, block, seen in work.some():
        s = work.scores(queries[tile], keys[block].flatten(1, 2), seen, scale, cap)
        sums = s.logsumexp(-1, keepdim=True)
        if sink is not None:
            head = tile // work.tiles % work.heads
            sums = torch.logaddexp(sums, sink[head][:, None, None])
        p = torch.exp(s - sums.masked_fill(sums == -math.inf, 0))
        out[tile], lse[tile] = p @ values[block].flatten(1, 2), sums
    return work.rows_of(out, q), work.rows_of(lse, lse)[..., 0].transpose(1, 2).contiguous()


def _backward(
    dout: Tensor,
    dlse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    out: Tensor,
    lse: Tensor,
    tables: BlockMaskTables,
    scale: float,
    cap: float,
) -> tuple[Tensor | None, ...]:
    work = _Tiles(q, k, tables)
    queries, keys, values, douts = work.of_rows(q), work.of_keys(k), work.of_keys(v), work.of_rows(dout)
    empty = lse == -math.inf  # the gradient of their lse has no effect
    delta = (out.to(work.wide) * dout.to(work.wide)).sum(-1) - dlse.masked_fill(empty, 0).transpose(1, 2)
    finite = lse.masked_fill(empty, 0).transpose(1, 2)
    delta, finite = (work.of_rows(x[..., None]) for x in (delta, finite))
    dq, dk, dv = (torch.zeros_like(x) for x in (queries, keys, values))
    for tile, block, seen in work.some():
        kept, seen_values = keys[block].flatten(1, 2), values[block].flatten(1, 2)
        s = work.scores(queries[tile], kept, seen, scale, cap)
        p = torch.exp(s - finite[tile])
        slope = p * (douts[tile] @ seen_values.transpose(1, 2) - delta[tile])
        if cap > 0:
            slope = slope * (1 - (s.masked_fill(~seen, 0) / cap) ** 2)
        dq[tile] = slope @ kept * scale
        pieces = block.flatten()
        dk.index_add_(0, pieces, (slope.transpose(1, 2) @ queries[tile] * scale).reshape(-1, *dk.shape[1:]))
        dv.index_add_(0, pieces, (p.transpose(1, 2) @ douts[tile]).reshape(-1, *dv.shape[1:]))
    dsink = None
    if sink is not None:
        of_sink = torch.exp(sink[:, None] - lse).masked_fill(empty, 0)
        whole = work.rows_of(delta, delta)[..., 0].transpose(1, 2)
        dsink = -(of_sink * whole).sum((0, 2))
    return work.rows_of(dq, q), work.keys_of(dk, k), work.keys_of(dv, v), dsink


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    counts: Tensor,
    blocks: Tensor,
    bits: Tensor,
    scale: float,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    out = q.new_empty((*q.shape[:3], v.shape[3]))
    return out, q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=sums_of(q.dtype))


torch.library.register_fake("profiling_lab::attention_fwd_blocks", _fake)
flops.register("attention_fwd_blocks")
