# SPDX-License-Identifier: Apache-2.0
"""What the attention kernels of E33 to E35 compute: their inputs and outputs, and a reference in torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DIM = 64
PAGE = 64
SCALE = DIM**-0.5


@dataclass(frozen=True, slots=True)
class Case:
    """One function `attend` in C."""

    queries: int
    """queries of a row that share its keys and values"""
    small: tuple[tuple[int, int], ...]
    """rows and keys of the tests of its results"""
    full: tuple[int, int]
    """rows and keys of run.py"""
    work: Callable[[int, int], int]
    """floats of scratch memory"""
    has_statistics: bool = False
    """entropy and pages, too"""

    def inputs(self, rows: int, count: int, device: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, keys and values. A few scores are large, so that the order of sums and maxima matters."""
        generator = torch.Generator(device).manual_seed(seed)
        options: Any = {"generator": generator, "device": device}
        q = 2 * torch.randn(rows, self.queries, DIM, **options)
        keys, values = (torch.randn(rows, count, DIM, **options) for _ in range(2))
        return q, keys, values

    def outputs(self, rows: int, count: int) -> dict[str, tuple[int, ...]]:
        """The shape of each output, in the order of the parameters."""
        statistics = {"entropy": (rows,), "pages": (rows, count // PAGE)} if self.has_statistics else {}
        return {"out": (rows, self.queries, DIM), **statistics}

    def reference(self, q: Tensor, keys: Tensor, values: Tensor) -> dict[str, Tensor]:
        """The outputs in the dtype of the inputs."""
        scores = q @ keys.mT * SCALE
        found = {"out": scores.softmax(-1) @ values}
        if self.has_statistics:
            logp = scores.log_softmax(-1)
            found["entropy"] = -(logp.exp() * logp).sum((-1, -2))
            found["pages"] = scores.view(len(q), -1, PAGE).amax(-1)
        return found


def call(library: Any, inputs: tuple[Tensor, ...], outputs: list[Tensor], work: Tensor) -> int:
    """Call `attend` of a library; returns its cudaError_t."""
    rows, count = inputs[1].shape[:2]
    pointers = [ctypes.c_void_p(each.data_ptr()) for each in (*inputs, *outputs, work)]
    return int(library.attend(*pointers, ctypes.c_int(rows), ctypes.c_int(count)))


CASES = {
    "low-memory-throughput": Case(
        queries=1,
        small=((3, 300), (2, 64), (1, 1)),
        full=(1024, 4096),
        work=lambda rows, count: rows * count,
    ),
    "low-occupancy": Case(
        queries=4,
        small=((3, 300), (2, 64), (1, 1)),
        full=(1024, 8192),
        work=lambda rows, count: 1,
    ),
    "long-kernel": Case(
        queries=1,
        small=((3, 320), (2, 1088), (1, 64)),
        full=(32, 65536),
        work=lambda rows, count: rows * (count + 8192),
        has_statistics=True,
    ),
}
