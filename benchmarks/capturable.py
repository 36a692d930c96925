# SPDX-License-Identifier: Apache-2.0
"""Which calls can be captured into a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from script import say

from profiling_lab.measure import compare


def capturable(variants: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Those of them that a graph takes; the others are named on stderr."""
    usable = dict(variants)
    for name, call in variants.items():
        try:
            compare({name: call}, mode="graph", rounds=1, warmup_s=0, calls_per_sample=2)
        except RuntimeError as error:
            say(f"not capturable: {name}: {str(error).splitlines()[0]}")
            del usable[name]
            torch.cuda.synchronize()
    return usable
