# SPDX-License-Identifier: Apache-2.0
"""PROFILING_LAB_EXPLAIN=1: which path calls take, and why, on stderr, each distinct sentence once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from profiling_lab.ops import _load

ON: bool = os.environ.get("PROFILING_LAB_EXPLAIN", "") not in ("", "0")
"""Read once, at import, so that a call without it does not even ask."""

_said: set[str] = set()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch is untyped here
def say(sentence: str) -> None:
    """Under torch.compile when the call is traced."""
    if sentence not in _said:
        _said.add(sentence)
        with suppress(AttributeError, OSError, ValueError):  # a program may have closed or replaced it
            sys.stderr.write(f"profiling_lab: {sentence}\n")
            sys.stderr.flush()


def told(slug: str, way: Callable[..., Any], in_parts: Callable[..., Any] | None) -> Callable[..., Any]:
    """`way` of an op (_calls.choice), which also says what it chose."""

    def way_and_say(*tensors: Any) -> Any:
        chosen = way(*tensors)
        x = tensors[0]
        if chosen is not None and chosen is in_parts:
            say(f"{slug}: plain torch, as its weights are sharded")
        elif isinstance(x, Tensor):
            _say_ours(slug, x.device.type, x.device.index, str(x.dtype)[6:], _asks(tensors))
        return chosen

    return way_and_say


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch is untyped here
def _say_ours(slug: str, device: str, index: int | None, dtype: str, asks: str) -> None:
    how = f"through torch's dispatcher: {asks}" if asks else "called plainly"
    say(f"{slug}: ours, {_kernels(slug, device, index)}, {dtype}; {how}")


def _asks(tensors: tuple[Any, ...]) -> str:
    """What stands between Python and the kernel, as in _calls.choice; empty for nothing."""
    if torch.compiler.is_compiling():
        return "torch.compile or torch.export"
    if torch._C._are_functorch_transforms_active():
        return "a transform of torch.func"
    if torch._C._is_any_autocast_enabled():
        return "autocast"
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation"
    kinds = {type(t) for t in tensors if isinstance(t, Tensor)} - {Tensor, torch.nn.Parameter}
    if kinds:
        return f"tensors of class {', '.join(sorted(kind.__name__ for kind in kinds))}"
    return "meta tensors" if tensors[0].is_meta else ""


def _kernels(slug: str, device: str, index: int | None) -> str:
    if device == "meta":
        return "shapes only"
    if device != "cuda":
        return "CPU kernels"
    if slug != "flash_attention":
        return "CUDA kernels"
    # As csrc/ops/attention/dispatch_cuda.cpp chooses. Rare cases are left out, which sm80 takes on
    # Hopper too: strides of 2^39 elements, no keys, and backward passes with a scale of 0 or below.
    cuda = _load.build_info()["cuda"] or {}
    if os.environ.get("PROFILING_LAB_ATTENTION_PATH") == "sm80":
        return "sm80 kernels (PROFILING_LAB_ATTENTION_PATH=sm80)"
    capability = torch.cuda.get_device_capability(index)
    if capability != (9, 0):
        return f"sm80 kernels (the GPU has compute capability {capability[0]}.{capability[1]})"
    if "90a" not in cuda.get("architectures", ""):  # "80 90a-real"
        return "sm80 kernels (this build has none for sm_90a)"
    return "sm90 kernels"
