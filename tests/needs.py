# SPDX-License-Identifier: Apache-2.0
"""What a test on the GPU needs: NVIDIA's command line tools, and memory that several processes share."""

from __future__ import annotations

import shutil
import time

import pytest
import torch

GIB = 1 << 30
PATIENCE_S = 120


def needs_gpu_memory(gibibytes: int) -> None:
    """Waits until that is free, for other tests give theirs back; skips the test if they do not."""
    torch.cuda.empty_cache()
    end = time.monotonic() + PATIENCE_S
    while (free := torch.cuda.mem_get_info()[0]) < gibibytes * GIB:
        if time.monotonic() > end:
            pytest.skip(f"needs {gibibytes} GiB of GPU memory, {free // GIB} are free")
        time.sleep(0.5)


def needs(tool: str) -> str:
    """The path of one of NVIDIA's tools; skips the test where there is none."""
    path = shutil.which(tool) or shutil.which(tool, path="/usr/local/cuda/bin")
    if path is None:
        pytest.skip(f"{tool} is not installed")
    return path
