# SPDX-License-Identifier: Apache-2.0
"""flash_attention for the models of transformers. Importing this registers it.

import profiling_lab.integrations.transformers_attention
model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="profiling_lab")

What flash_attention does not compute goes to transformers' SDPA attention, or to the model's own eager one
where SDPA has no such option either. docs/models.md lists what, and why.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn

from profiling_lab.integrations._transformers_masks import Structure, StructuredMask, mask
from profiling_lab.ops import explain, flash_attention
from profiling_lab.ops._padding import Padding, may_be_padding, padding_of

__all__ = ["NAME", "attention"]

NAME = "profiling_lab"
"""The value of attn_implementation."""

_models: Any = import_module("transformers.modeling_utils")
_sdpa: Any = import_module("transformers.integrations.sdpa_attention").sdpa_attention_forward
_masks: Any = import_module("transformers.masking_utils")

_FOR_SDPA = ("position_bias", "cache")
_FOR_EAGER = ("indices", "block_indices", "sinks", "head_mask", "layer_head_mask")


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention of transformers' interface: (batch, heads, rows, head_dim) in, (batch, rows, heads,
    head_dim) out. The mask says what is visible, windows included, as for SDPA and eager attention.
    """
    why = _why_not(module, query, key, value, attention_mask, dropout, others)
    padding = None
    if why is None and attention_mask is not None and not isinstance(attention_mask, StructuredMask):
        padding = padding_of(attention_mask, query.shape[0], query.shape[2])
        why = padding if isinstance(padding, str) else None
    if why is not None:
        options = {"is_causal": is_causal, "softcap": softcap, "s_aux": s_aux, **others}
        return _hand_back(why, module, query, key, value, attention_mask, dropout, scaling, options)
    if isinstance(attention_mask, StructuredMask):
        structure = attention_mask.structure
    elif isinstance(padding, Padding):
        structure = Structure(False, None, padding.keys, padding.cu_seqlens_q, padding.cu_seqlens_k)
    else:  # no mask: as SDPA is called then, where a causal call with more keys has a static cache to fill
        wanted = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(query.shape[2] > 1 and wanted)
        structure = Structure(causal, None, query.shape[2] if causal else key.shape[2])
    return _flash(query, key, value, structure, scaling, softcap, s_aux), None


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    structure: Structure,
    scale: float | None,
    softcap: float | None,
    sink: Tensor | None,
) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (query, key[:, :, : structure.keys], value[:, :, : structure.keys]))
    options: dict[str, Any] = {
        "causal": structure.causal,
        "window": structure.window,
        "scale": scale,
        "softcap": softcap or 0.0,
        "sink": sink,
    }
    if structure.cu_seqlens_q is None or structure.cu_seqlens_k is None:
        return cast(Tensor, flash_attention(q, k, v, **options))
    cu_q, cu_k = (t.to(q.device) for t in (structure.cu_seqlens_q, structure.cu_seqlens_k))
    rows = (t.flatten(0, 1) for t in (q, k, v))
    out = flash_attention(*rows, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **options)
    return cast(Tensor, out.unflatten(0, q.shape[:2]))


def _why_not(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    others: dict[str, Any],
) -> str | None:
    """Why flash_attention cannot take a call, or None."""
    if not _follows_the_interface(type(module).__module__):
        return "the model supports neither SDPA nor flash attention, so its eager attention may do more"
    for name in (*_FOR_SDPA, *_FOR_EAGER):
        if others.get(name) is not None:
            return f"{name} is not an option of flash_attention"
    if dropout:
        return "dropout"
    plain = attention_mask is not None and not isinstance(attention_mask, StructuredMask)
    if attention_mask is not None and plain and not may_be_padding(attention_mask, query, key):
        return "a mask that is neither causal, nor a window, nor padding or packed sequences"
    if (
        attention_mask is not None
        and not plain
        and attention_mask.shape[2:] != (query.shape[2], key.shape[2])
    ):
        return "a mask of another size than queries and keys"
    if not query.dtype == key.dtype == value.dtype:
        return "query, key and value have different dtypes"
    if query.shape[0] != key.shape[0] or query.shape[1] % max(key.shape[1], 1):
        return "batches or heads that are broadcast"
    lengths = isinstance(attention_mask, StructuredMask) and attention_mask.structure.cu_seqlens_q is not None
    if (lengths or plain) and query.shape[2] == 1:
        return "one query a sequence over padded keys, which would be copied"
    return _no_kernel(query, value)


def _no_kernel(query: Tensor, value: Tensor) -> str | None:
    device = query.device
    if device.type == "cpu" or device.type == "meta":
        return None
    if device.type != "cuda":
        return f"no kernels for {device.type}"
    from profiling_lab.ops.attention import _has_kernels

    if not _has_kernels(device.type, device.index):
        return "no CUDA kernels in this build, or a GPU older than compute capability 8.0"
    if query.dtype not in (torch.bfloat16, torch.float16) and not torch.is_autocast_enabled("cuda"):
        return f"{str(query.dtype)[6:]} on CUDA; bfloat16 and float16 have kernels"
    for dim in (query.shape[-1], value.shape[-1]):
        if dim % 8 or dim > 256:
            return f"head_dim {dim} on CUDA; multiples of 8 up to 256 have kernels"
    return None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch is untyped here
def _follows_the_interface(module: str) -> bool:
    """Whether a model's code says that another attention than its own eager one may run."""
    return _supports_others(module)  # a function with a cache cannot be marked as constant itself


@cache
def _supports_others(module: str) -> bool:
    here = vars(sys.modules[module]).values() if module in sys.modules else ()
    classes = [c for c in here if isinstance(c, type) and issubclass(c, _models.PreTrainedModel)]
    own = [c for c in classes if c.__module__ == module]
    supports = ("_supports_sdpa", "_supports_flash_attn")
    return not own or any(getattr(c, name, False) for c in own for name in supports)


def _hand_back(
    why: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    options: dict[str, Any],
) -> tuple[Tensor, None]:
    """The call by transformers' SDPA attention, or by the model's own where SDPA would ignore something."""
    if isinstance(attention_mask, StructuredMask):
        attention_mask = attention_mask.matrix()
    options = {name: option for name, option in options.items() if option is not None}
    more = [name for name in ("softcap", "s_aux", *_FOR_EAGER) if name in options]
    if not more and _follows_the_interface(type(module).__module__):
        if explain.ON:
            explain.say(f"transformers: handed back to SDPA: {why}")
        out, _ = _sdpa(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options)
        return out, None
    eager = getattr(sys.modules.get(type(module).__module__), "eager_attention_forward", None)
    if eager is None:
        raise ValueError(
            f'attn_implementation="{NAME}": {type(module).__name__} needs its eager attention ({why}), and '
            'its module has none; load the model with attn_implementation="eager"'
        )
    if explain.ON:
        explain.say(f"transformers: handed back to the model's eager attention: {why}")
    if attention_mask is None:
        attention_mask = _causal_mask(module, query, key, options.get("is_causal"))
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        attention_mask = torch.zeros((), dtype=query.dtype, device=query.device).where(attention_mask, lowest)
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    out = eager(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options)[0]
    return out, None


def _causal_mask(module: nn.Module, query: Tensor, key: Tensor, is_causal: bool | None) -> Tensor | None:
    """The matrix that an eager attention wants where SDPA gets none and a flag."""
    rows, keys = query.shape[2], key.shape[2]
    wanted = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if rows == 1 or not wanted:
        return None
    return torch.ones(rows, keys, dtype=torch.bool, device=query.device).tril()[None, None]


_models.AttentionInterface.register(NAME, attention)
_masks.AttentionMaskInterface.register(NAME, mask)
