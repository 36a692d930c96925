# SPDX-License-Identifier: Apache-2.0
"""The measured peak rates of this machine. A share of the roof is relative to these, from the same run."""

from __future__ import annotations

from profiling_lab.errors import UsageError
from profiling_lab.measure.timing import compare


def copy_rate(size_bytes: int = 4 << 30, *, device: str = "cuda", rounds: int = 20) -> float:
    """Bytes per second, read plus written, of a copy of `size_bytes` within the device's memory."""
    import torch

    source = torch.empty(size_bytes // 2, dtype=torch.bfloat16, device=device).normal_()
    target = torch.empty_like(source)
    timing = compare({"copy": lambda: target.copy_(source)}, device=device, rounds=rounds, cold=False)["copy"]
    moved_bytes = 2 * int(source.numel()) * int(source.itemsize)
    return moved_bytes / (timing.median_ns * 1e-9)


def matmul_rate(dtype: str = "bfloat16", n: int = 8192, *, device: str = "cuda", rounds: int = 20) -> float:
    """Floating-point operations per second (2 n^3 each) of the product of two random n x n matrices.

    Random, because a GPU at its power limit runs faster on zeros. float32 uses the precision torch is set to.
    """
    import torch

    try:
        element = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[dtype]
    except KeyError:
        raise UsageError(f"matmul_rate: dtype is {dtype!r}, expected bfloat16, float16 or float32") from None
    a, b = (torch.empty(n, n, dtype=element, device=device).normal_() for _ in range(2))
    out = torch.empty_like(a)
    timing = compare({"matmul": lambda: torch.mm(a, b, out=out)}, device=device, rounds=rounds, cold=False)[
        "matmul"
    ]
    return 2 * n**3 / (timing.median_ns * 1e-9)
