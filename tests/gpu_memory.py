# SPDX-License-Identifier: Apache-2.0
"""The GPU's memory, which several processes of a parallel test run share."""

from __future__ import annotations

import time

import pytest
import torch

GIB = 1 << 30
PATIENCE_S = 120


def needs_gpu_memory(gibibytes: int) -> None:
    """Waits until so much is free, for other tests give theirs back; skips the test if they do not."""
    torch.cuda.empty_cache()
    end = time.monotonic() + PATIENCE_S
    while (free := torch.cuda.mem_get_info()[0]) < gibibytes * GIB:
        if time.monotonic() > end:
            pytest.skip(f"needs {gibibytes} GiB of GPU memory, {free // GIB} are free")
        time.sleep(0.5)
