# SPDX-License-Identifier: Apache-2.0
"""memory_summary and profile_memory: bytes, and None where they are not known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiling_lab.utils import memory, memory_summary, profile_memory

KEYS = {f"{name}_bytes" for name in ("allocated", "peak_allocated", "reserved", "peak_reserved",
                                     "gpu_free", "gpu_total")}  # fmt: skip


def test_without_a_gpu_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "allocator", lambda: None)
    assert memory_summary() == dict.fromkeys(KEYS)
    with profile_memory() as used:
        pass
    assert used.current_bytes is None and used.peak_bytes is None and used.reserved_bytes is None
    assert str(used) == "GPU memory: not known, torch has not used a GPU"


def test_the_numbers_of_the_block_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda: Any = SimpleNamespace(peak=9 << 30, resets=0)
    cuda.memory_allocated = lambda device: 1 << 30
    cuda.memory_reserved = lambda device: 4 << 30
    cuda.max_memory_allocated = lambda device: cuda.peak

    def reset(device: str) -> None:
        cuda.peak = 1 << 30

    cuda.reset_peak_memory_stats = reset
    monkeypatch.setattr(memory, "allocator", lambda: cuda)
    monkeypatch.setattr(memory, "chosen_device", lambda device: "cuda:0")
    with profile_memory() as used:
        assert used.peak_bytes == 1 << 30, "what was before the block is not its peak"
        cuda.peak = 3 << 30
    cuda.peak = 8 << 30
    assert (used.current_bytes, used.peak_bytes, used.reserved_bytes) == (1 << 30, 3 << 30, 4 << 30)
    assert str(used) == "GPU memory: 1.0 GiB in tensors, 3.0 GiB peak, 4.0 GiB reserved by the allocator"


@pytest.mark.gpu
def test_known_allocations() -> None:
    torch.ones(1, device="cuda")
    before = memory_summary(0)
    with profile_memory() as used:
        x = torch.randn(1024, 1024, device="cuda")
        y = x @ x.T
        del x, y
    assert used.current_bytes == before["allocated_bytes"]
    assert used.peak_bytes is not None and used.current_bytes is not None
    assert used.peak_bytes >= used.current_bytes + 2 * 4 * 1024 * 1024
    after = memory_summary("cuda:0")
    assert set(after) == KEYS and all(value is not None for value in after.values())
    assert after["peak_allocated_bytes"] == used.peak_bytes
