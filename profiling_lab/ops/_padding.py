# SPDX-License-Identifier: Apache-2.0
"""Boolean masks of keys, (batch, 1, 1, keys), that mask padding behind them, as lengths of sequences.

Whether a mask is one, only its values say. On a GPU the host waits for them, once for each mask: they are
known as long as the tensor that they were read from lives and its version, which in-place changes raise, is
the same. A change that torch does not see (by another library, `.data`, a CUDA graph) is not noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass(frozen=True, slots=True)
class Padding:
    """Sequences whose keys end before their padding."""

    keys: int
    """The number that counts, from the first: of all sequences, or, without offsets, of each."""
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    """Offsets in a batch whose rows lie one behind the other. Padded keys are sequences without queries."""


def may_be_padding(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    """Whether a mask has the shape of one for keys alone, of queries and keys as SDPA has them."""
    if type(mask) is not Tensor or mask.dtype != torch.bool or not 1 <= mask.dim() <= 4 or mask.numel() == 0:
        return False
    full = mask[(None,) * (4 - mask.dim())]
    fits = all(m in (1, n) for m, n in zip(full.shape, query.shape[:3], strict=False))
    is_one = all(full.shape[dim] == 1 or full.stride(dim) == 0 for dim in (1, 2))  # expanded ones are one
    return fits and is_one and full.shape[3] == key.shape[2] and mask.device == query.device


def padding_of(mask: Tensor, batch: int, rows: int) -> Padding | str:
    """What a mask that may be one says, or why that is not possible."""
    if torch.compiler.is_compiling():
        return "a mask, whose values a compiled graph may not depend on"
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        return "a mask, which a CUDA graph that is being captured cannot read"
    valid = mask[(None,) * (4 - mask.dim())][:, 0, 0].expand(batch, -1)
    if not _waits(mask):
        return _read(valid, rows)
    base = mask if mask._base is None else mask._base
    place = (valid.storage_offset(), valid.shape, valid.stride(), rows)
    known: dict[Any, tuple[int, Padding | str]] = _KNOWN.setdefault(base, {})
    if place not in known or known[place][0] != mask._version:
        known[place] = mask._version, _read(valid, rows)
    return known[place][1]


_KNOWN: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""By the tensor that has the memory: what has been read, by the view of it, each with the version."""


def _waits(mask: Tensor) -> bool:
    """Whether reading waits for a GPU, and what was read may be kept."""
    return mask.is_cuda and not mask.is_inference()


def _read(valid: Tensor, rows: int) -> Padding | str:
    is_prefix = (valid[:, 1:] <= valid[:, :-1]).all()
    keys = valid.shape[1]
    *lengths, first_ones = torch.cat([valid.sum(1), is_prefix[None]]).tolist()  # the one wait for the GPU
    if not first_ones:
        return "a mask of other keys than the last ones"
    if len(set(lengths)) == 1:
        return Padding(lengths[0])
    cu_q, cu_k = [0], [0]
    for length in lengths:
        for queries, own in ((rows, length), (0, keys - length)):
            cu_q.append(cu_q[-1] + queries)
            cu_k.append(cu_k[-1] + own)
    offsets = torch.tensor([cu_q, cu_k], dtype=torch.int32).to(valid.device, non_blocking=True)
    return Padding(keys, offsets[0], offsets[1])
