# SPDX-License-Identifier: Apache-2.0
"""FlexAttention's BlockMask as tables that a kernel reads: which keys each 64 rows see, in blocks of 128."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd
from typing import Any

import torch
from torch import Tensor

SLUG = "flash_attention_with_block_mask"
ROWS, KEYS = 64, 128  # of a part: csrc/ops/attention/attention.h, BlockMask
ALL, NONE = -1, -2
_AT_ONCE = 1 << 12  # parts whose mask_mod is evaluated together: 32 million pairs


@dataclass(frozen=True, slots=True, eq=False)
class BlockMaskTables:
    """What prepare_block_mask makes of a BlockMask; it does not change when the BlockMask's tensors do."""

    rows: int
    keys: int
    parts: Tensor
    """int32 (1 or batch, 1 or heads, rows / 64, keys / 128), both rounded up: -1 all pairs are seen, -2 none,
    else the number of a table in `bits`."""
    bits: Tensor
    """int32 (tables, 64, 4): bit j of word w says whether the row sees key 32 w + j of the block."""
    _lists: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def lists(self, tile_rows: int) -> tuple[Tensor, Tensor]:
        """For tiles of `tile_rows` rows: how many blocks each sees, int32 (batch, heads, tiles), and which,
        int32 (batch, heads, tiles, most, 4): a block's number and what it is for each 64 rows of the tile.
        """
        if tile_rows not in self._lists:
            self._lists[tile_rows] = _lists_of(self.parts, tile_rows // ROWS)
        return self._lists[tile_rows]


def prepare_block_mask(block_mask: Any) -> BlockMaskTables:
    """Evaluate the mask_mod of a FlexAttention BlockMask on the blocks that are seen in part, once.

    For masks that serve many calls. Blocks that the BlockMask does not list are not seen, and those that
    it lists as full are seen whole, whatever mask_mod says; that is FlexAttention's meaning, too. Any
    BLOCK_SIZE. What the mask_mod reads is read now: after a change of it, prepare again. The host waits for
    the GPU. Raises ValueError for what is no BlockMask.
    """
    names = ("kv_num_blocks", "kv_indices", "mask_mod", "BLOCK_SIZE", "seq_lengths")
    if any(not hasattr(block_mask, name) for name in names):
        raise ValueError(
            f"{SLUG}: block_mask is a {type(block_mask).__name__}, expected the BlockMask of "
            "torch.nn.attention.flex_attention or what prepare_block_mask returns"
        )
    rows, keys = block_mask.seq_lengths
    state = _states(block_mask.kv_num_blocks, block_mask.kv_indices, 1)
    if block_mask.full_kv_num_blocks is not None:
        state = torch.maximum(state, _states(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, 2))
    high, wide = (int(size) for size in block_mask.BLOCK_SIZE)
    least, most = (_pooled(state, (high, wide), (rows, keys), reduce) for reduce in (torch.amin, torch.amax))
    inside = torch.ones(least.shape[-1], dtype=torch.bool, device=least.device)
    if keys % KEYS:  # the last block is seen in part: behind the last key there is nothing to see
        inside[-1] = False
    parts = torch.where(most == 0, NONE, torch.where((least == 2) & inside, ALL, 0)).int()
    bits: list[Tensor] = []
    count = 0
    for some in (parts == 0).nonzero().split(_AT_ONCE):
        if not len(some):
            continue
        batch, head, row, key = some.unbind(1)
        mask = _seen(block_mask.mask_mod, state, (high, wide), (rows, keys), some)
        number = torch.arange(len(some), device=mask.device) + count
        count += len(some)
        no_row = (torch.arange(ROWS, device=mask.device) + ROWS * row[:, None]) >= rows
        whole = (mask | no_row[:, :, None]).flatten(1).all(1)
        kind = torch.where(whole, ALL, torch.where(mask.flatten(1).any(1), number, NONE))
        parts[batch, head, row, key] = kind.int()
        words = mask.unflatten(2, (4, 32)).long() << torch.arange(32, device=mask.device)
        bits.append(words.sum(-1).int())
    tables = torch.cat(bits) if bits else parts.new_zeros(1, ROWS, 4)
    return BlockMaskTables(rows, keys, parts, tables)


def _states(counts: Tensor, indices: Tensor, value: int) -> Tensor:
    """(batch, heads, blocks of rows, blocks of keys): `value` where a list names the block, else 0."""
    counts, indices = ((x[None, None] if x.dim() == n else x) for x, n in ((counts, 1), (indices, 2)))
    named = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    spare = indices.shape[-1]  # what is behind the count goes there
    state = torch.zeros((*indices.shape[:-1], spare + 1), dtype=torch.int8, device=indices.device)
    return state.scatter(-1, torch.where(named, indices, spare).long(), value)[..., :spare]


def _pooled(
    state: Tensor, block: tuple[int, int], size: tuple[int, int], reduce: Callable[..., Tensor]
) -> Tensor:
    """Of the blocks that each part of ROWS x KEYS lies in, the least or the largest state."""
    for dim, own, given, length in ((2, ROWS, block[0], size[0]), (3, KEYS, block[1], size[1])):
        unit = gcd(own, given)  # both are whole numbers of it
        number = torch.arange(-(-length // unit), device=state.device) * unit // given
        state = state.index_select(dim, number.clamp(max=max(state.shape[dim] - 1, 0)))
        spare = -state.shape[dim] % (own // unit)
        last = state.narrow(dim, state.shape[dim] - 1, 1) if state.shape[dim] else state
        state = torch.cat([state, last.expand(*(spare if d == dim else -1 for d in range(4)))], dim)
        state = reduce(state.unflatten(dim, (-1, own // unit)), dim=dim + 1)
    return state


def _seen(
    mask_mod: Any, state: Tensor, block: tuple[int, int], size: tuple[int, int], some: Tensor
) -> Tensor:
    """The pairs of these parts, (parts, ROWS, KEYS), as the lists and mask_mod say."""
    from torch.nn.attention.flex_attention import create_mask  # whoever has a BlockMask has imported it

    batch, head, row, key = some.unbind(1)
    row, key = row * ROWS, key * KEYS
    last_row, last_key = size[0] - 1, size[1] - 1

    def of_part(part: Tensor, _: Tensor, i: Tensor, j: Tensor) -> Tensor:
        at, to = (row[part] + i).clamp(max=last_row), (key[part] + j).clamp(max=last_key)
        seen: Tensor = mask_mod(batch[part], head[part], at, to)
        return seen

    seen = create_mask(of_part, len(some), 1, ROWS, KEYS, device=str(some.device))[:, 0]
    i, j = (torch.arange(n, device=some.device) for n in (ROWS, KEYS))
    i, j = (row[:, None] + i)[:, :, None], (key[:, None] + j)[:, None, :]
    kind = state[
        batch[:, None, None], head[:, None, None],
        (i // block[0]).clamp(max=state.shape[2] - 1), (j // block[1]).clamp(max=state.shape[3] - 1),
    ]  # fmt: skip
    return ((kind == 2) | ((kind == 1) & seen)) & (i <= last_row) & (j <= last_key)


def _lists_of(parts: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    spare = -parts.shape[2] % groups
    parts = torch.cat([parts, parts.new_full((*parts.shape[:2], spare, parts.shape[3]), NONE)], 2)
    parts = parts.unflatten(2, (-1, groups)).transpose(3, 4)  # (batch, heads, tiles, blocks, groups)
    seen = (parts != NONE).any(-1)
    counts = seen.sum(-1)
    most = max(int(counts.max()), 1) if counts.numel() else 1
    order = torch.argsort(~seen, dim=-1, stable=True)[..., :most]
    blocks = parts.new_full((*order.shape, 4), NONE)
    blocks[..., 0] = order.int()
    blocks[..., 1 : 1 + groups] = parts.gather(3, order[..., None].expand(*order.shape, groups))
    return counts.clamp(min=1).int(), blocks  # a tile that sees nothing has one block, which no row sees
