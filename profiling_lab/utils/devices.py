# SPDX-License-Identifier: Apache-2.0
"""Which device a utility measures, without loading torch into a program that does not use it."""

from __future__ import annotations

import sys
from typing import Any

from profiling_lab.errors import UsageError


def loaded_torch() -> Any:
    """torch, if the program has loaded it; otherwise nothing of it can have used the GPU."""
    return sys.modules.get("torch")


def chosen_device(device: object = None) -> str:
    """`device` (a name, a torch.device or the number of a GPU) as text.

    None: torch's current GPU if the program has begun to use one, else the CPU; CUDA is not initialised for
    the answer, as such a process can no longer fork workers that use it. Raises UsageError for a device that
    is neither the CPU nor a CUDA device, and for a GPU that torch does not see.
    """
    if device is None:
        cuda = allocator()
        return "cpu" if cuda is None else f"cuda:{cuda.current_device()}"
    name = f"cuda:{device}" if isinstance(device, int) else str(device)
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise UsageError(f"device must be cpu, cuda or cuda:N, not {name!r}")
    if kind == "cpu":
        return "cpu"
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        raise UsageError(f"device is {name!r}, but torch {torch.__version__} sees {count} GPUs")
    return name


def allocator() -> Any:
    """torch.cuda if the program has begun to use a GPU, otherwise None: its allocator has no numbers."""
    torch = loaded_torch()
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def gpu_index(caller: str, device: object = None) -> int:
    """The number of a GPU, as torch counts: of `cuda:1` or 1. None and `cuda`: torch's current GPU, or 0.

    Raises UsageError for a device that is not a GPU's; the sentence names the caller.
    """
    torch = loaded_torch()
    kind, _, index = str(device).rpartition(":")
    if device is None or (kind == "" and index == "cuda"):
        return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else 0
    if kind not in ("", "cuda") or not index.isdigit():
        raise UsageError(f"{caller}: device must be the number of a GPU or cuda:N, not {device!r}")
    return int(index)
