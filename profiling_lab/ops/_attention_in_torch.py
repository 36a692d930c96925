# SPDX-License-Identifier: Apache-2.0
"""flash_attention in plain torch with the whole score matrix: the tests' truth, and its derivatives
beyond the first, which take rows x keys numbers for each head, a few times."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from profiling_lab.ops._autograd import pullback
from profiling_lab.ops._registration import sums_of

Window = int | tuple[int, int] | None
NO_LIMIT = 1 << 30  # the ops take fewer rows than that


def window_of(window: Window, causal: bool) -> tuple[int, int]:
    """(left, right) as the op takes it: a negative number is no limit."""
    if window is None:
        return -1, 0 if causal else -1
    pair = (window, window) if isinstance(window, int) else window
    if not isinstance(pair, (tuple, list)) or [type(side) for side in pair] != [int, int]:
        raise ValueError(
            f"flash_attention: window is {window!r}, expected (left, right) or one number, whole numbers"
        )
    left, right = pair
    if causal:
        right = 0 if right < 0 else min(right, 0)
    return max(min(left, NO_LIMIT), -1), max(min(right, NO_LIMIT), -1)


def _visible(
    rows: int, keys: int, left: int, right: int, cu_q: Tensor | None, cu_k: Tensor | None, device: Any
) -> Tensor:
    """Which key each row sees, (rows, keys). With offsets: of its own sequence."""
    i = torch.arange(rows, device=device, dtype=torch.int32)
    j = torch.arange(keys, device=device, dtype=torch.int32)
    seen = torch.ones(rows, keys, dtype=torch.bool, device=device)
    if cu_q is None or cu_k is None:
        i = i + (keys - rows)
    else:
        last = cu_q.numel() - 1
        sequence, of_key = (
            torch.searchsorted(cu[1:].contiguous(), x, right=True) for cu, x in ((cu_q, i), (cu_k, j))
        )
        seen = (sequence[:, None] == of_key[None, :]) & (sequence < last)[:, None]
        after = (sequence + 1).clamp(max=last)
        i = i - cu_q[sequence] + (cu_k[after] - cu_k[sequence]) - (cu_q[after] - cu_q[sequence])
        j = j - cu_k[of_key]
    if left >= 0:
        seen = seen & (j[None, :] >= i[:, None] - left)
    if right >= 0:
        seen = seen & (j[None, :] <= i[:, None] + right)
    return seen


def _attention(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, seen: Tensor, scale: float, softcap: float
) -> tuple[Tensor, Tensor]:
    """out and lse for q, k and v of (batch, rows, heads, head_dim) and what each row sees."""
    group = q.shape[2] // max(k.shape[2], 1)
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, -math.inf)
    keys = k.shape[1]
    if sink is not None:
        column = sink.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    # A row of nothing but -inf has no weights: its gradients are 0, where logsumexp's would be NaN.
    nothing = (scores == -math.inf).all(-1)
    wide = scores.masked_fill(nothing[..., None], 0.0).to(sums_of(q.dtype))
    lse = torch.logsumexp(wide, dim=-1).masked_fill(nothing, -math.inf)
    zero = lse.masked_fill(lse == -math.inf, 0.0)
    p = torch.exp(scores - zero[..., None].to(scores.dtype))[..., :keys]
    return (p @ v.transpose(1, 2)).transpose(1, 2), lse


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: Window = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """flash_attention in the inputs' own dtype, as the formulas say; fixed lengths."""
    seen = _visible(q.shape[1], k.shape[1], *window_of(window, causal), None, None, q.device)
    factor = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    out, lse = _attention(q, k, v, sink, seen, factor, softcap)
    return (out, lse) if return_lse else out


def forward_in_torch(
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
    deterministic: bool = False,
) -> tuple[Tensor, Tensor]:
    """The op attention_fwd: its arguments and its results."""
    wide, packed = sums_of(q.dtype), cu_q is not None
    queries, keys, values = (x.to(wide)[None] if packed else x.to(wide) for x in (q, k, v))
    seen = _visible(queries.shape[1], keys.shape[1], left, right, cu_q, cu_k, q.device)
    out, lse = _attention(queries, keys, values, sink, seen, scale, softcap)
    if cu_q is not None:
        out, lse = out[0], lse[0]
        behind = torch.arange(q.shape[0], device=q.device) >= cu_q[-1]  # the sink does not count there
        lse = lse.masked_fill(behind, -math.inf)
    return out.to(q.dtype).contiguous(), lse.contiguous()


def backward_in_torch(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sink: Tensor | None,
    *options: Any,
) -> tuple[Tensor, ...]:
    """The op attention_bwd."""
    inputs = (q, k, v) if sink is None else (q, k, v, sink)

    def forward(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return forward_in_torch(q, k, v, sink, *options)

    grads = pullback(forward, inputs, (dout, torch.zeros_like(lse) if dlse is None else dlse))
    return (*grads, lse.new_empty(0)) if sink is None else grads
