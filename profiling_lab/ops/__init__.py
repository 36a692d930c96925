# SPDX-License-Identifier: Apache-2.0
"""Custom PyTorch ops: `from profiling_lab.ops import heavy_layer, HeavyLayer`.

Importing this package loads neither torch nor the compiled library; the first use of an op loads both.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from profiling_lab.ops import _load

if TYPE_CHECKING:
    from profiling_lab.ops.attention import (
        FlashSelfAttention,
        attention_flash,
        flash_attention,
        flash_attention_for_sdpa,
    )
    from profiling_lab.ops.heavy_layer import HeavyLayer, heavy_layer
    from profiling_lab.ops.ladder_attention import LadderSelfAttention, ladder_attention
    from profiling_lab.ops.layer_norm_gelu import LayerNormGelu, layer_norm_gelu, layer_norm_gelu_residual

__all__ = [
    "OPS",
    "FlashSelfAttention",
    "HeavyLayer",
    "LadderSelfAttention",
    "LayerNormGelu",
    "attention_flash",
    "flash_attention",
    "flash_attention_for_sdpa",
    "heavy_layer",
    "ladder_attention",
    "layer_norm_gelu",
    "layer_norm_gelu_residual",
]

OPS: tuple[str, ...] = ("attention", "heavy_layer", "ladder_attention", "layer_norm_gelu")
"""Every op, by the name of its function, its module here and its folder in csrc/ops."""

_HOMES = {
    "attention": "attention",
    "attention_flash": "attention",
    "flash_attention": "attention",
    "flash_attention_for_sdpa": "attention",
    "FlashSelfAttention": "attention",
    "heavy_layer": "heavy_layer",
    "HeavyLayer": "heavy_layer",
    "ladder_attention": "ladder_attention",
    "LadderSelfAttention": "ladder_attention",
    "layer_norm_gelu": "layer_norm_gelu",
    "layer_norm_gelu_residual": "layer_norm_gelu",
    "LayerNormGelu": "layer_norm_gelu",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        _load.load()  # before the submodule imports torch, so that a missing torch is told in our words
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Package(ModuleType):
    """Importing a submodule binds its name in the package; for an op that name shall stay the function's."""

    def __setattr__(self, name: str, value: Any) -> None:
        is_op = name in OPS and isinstance(value, ModuleType)
        super().__setattr__(name, getattr(value, name, value) if is_op else value)


sys.modules[__name__].__class__ = _Package
