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
    from profiling_lab.ops.attention import *  # noqa: F403
    from profiling_lab.ops.heavy_layer import *  # noqa: F403
    from profiling_lab.ops.ladder_attention import *  # noqa: F403
    from profiling_lab.ops.layer_norm_gelu import *  # noqa: F403

# What each op's module has for its users, besides the function that is named like it.
_NAMES: dict[str, tuple[str, ...]] = {
    "attention": (
        "attention_flash",
        "flash_attention",
        "flash_attention_for_sdpa",
        "flash_attention_with_block_mask",
        "flash_attention_with_cache",
        "merge_attention",
        "prepare_block_mask",
        "ring_attention",
        "FlashSelfAttention",
    ),
    "heavy_layer": ("HeavyLayer",),
    "ladder_attention": ("LadderSelfAttention",),
    "layer_norm_gelu": ("layer_norm_gelu_residual", "LayerNormGelu"),
}

OPS: tuple[str, ...] = tuple(_NAMES)
"""Every op, by the name of its function, its module here and its folder in csrc/ops."""

_HOMES = {name: op for op, names in _NAMES.items() for name in (op, *names)}
__all__ = ["OPS", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        _load.load()  # before the submodule imports torch, so that a missing torch gets our message
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Package(ModuleType):
    """Importing a submodule binds its name in the package; for an op that name shall stay the function's."""

    def __setattr__(self, name: str, value: Any) -> None:
        is_op = name in OPS and isinstance(value, ModuleType)
        super().__setattr__(name, getattr(value, name, value) if is_op else value)


sys.modules[__name__].__class__ = _Package
