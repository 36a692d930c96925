# SPDX-License-Identifier: Apache-2.0
"""GPU memory in bytes, from torch's allocator and the driver: memory_summary and profile_memory."""

from __future__ import annotations

from typing import Any

from profiling_lab.report import numbers
from profiling_lab.utils.devices import allocator, chosen_device


def memory_summary(device: object = 0) -> dict[str, int | None]:
    """What torch's allocator has on a GPU, and what the GPU has, in bytes.

    allocated: in tensors; reserved: what the allocator took from the driver, tensors included (older texts
    say cached); peak_...: the most since the program began or reset it. gpu_free and gpu_total: of the whole
    GPU, all processes included. All are None where torch has not used a GPU in this process.
    """
    names = ("allocated", "peak_allocated", "reserved", "peak_reserved", "gpu_free", "gpu_total")
    values: tuple[Any, ...] = (None,) * len(names)
    if (cuda := allocator()) is not None:
        on = chosen_device(device)
        values = (cuda.memory_allocated(on), cuda.max_memory_allocated(on), cuda.memory_reserved(on),
                  cuda.max_memory_reserved(on), *cuda.mem_get_info(on))  # fmt: skip
    return {f"{name}_bytes": value for name, value in zip(names, values, strict=True)}


class MemoryUse:
    """The memory of a `with` statement's body, or since the object was made where there is no such statement.

    current_bytes: in tensors at the end; peak_bytes: the most in tensors; reserved_bytes: what the allocator
    had from the driver at the end. None without a GPU that torch uses.
    """

    def __init__(self, device: object = None) -> None:
        self._device = device
        self._final: tuple[int | None, ...] | None = None
        self._reset()

    def __enter__(self) -> MemoryUse:
        self._reset()
        return self

    def __exit__(self, *failure: object) -> None:
        self._final = self._read()

    @property
    def current_bytes(self) -> int | None:
        return self._values()[0]

    @property
    def peak_bytes(self) -> int | None:
        return self._values()[1]

    @property
    def reserved_bytes(self) -> int | None:
        return self._values()[2]

    def __str__(self) -> str:
        words = ("in tensors", "peak", "reserved by the allocator")
        pairs = zip(self._values(), words, strict=True)
        known = [f"{numbers.size(value)} {word}" for value, word in pairs if value is not None]
        return "GPU memory: " + (", ".join(known) or "not known, torch has not used a GPU")

    def _reset(self) -> None:
        if (cuda := allocator()) is not None:
            cuda.reset_peak_memory_stats(chosen_device(self._device))

    def _values(self) -> tuple[int | None, ...]:
        return self._read() if self._final is None else self._final

    def _read(self) -> tuple[int | None, ...]:
        if (cuda := allocator()) is None:
            return (None, None, None)
        on = chosen_device(self._device)
        return cuda.memory_allocated(on), cuda.max_memory_allocated(on), cuda.memory_reserved(on)


def profile_memory(device: object = None) -> MemoryUse:
    """Measure GPU memory: `with profile_memory() as memory: ...`, then memory.peak_bytes, or print it.

    It begins with torch.cuda.reset_peak_memory_stats. device: default the current GPU.
    """
    return MemoryUse(device)
