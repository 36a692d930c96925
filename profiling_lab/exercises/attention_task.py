# SPDX-License-Identifier: Apache-2.0
"""What the attention kernels of E33 to E35 compute: inputs, outputs, and a reference in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from profiling_lab.exercises.kernel_repair import Case, Task, guarded

DIM = 64
PAGE = 64
SCALE = DIM**-0.5
ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Attention:
    """One function `attend` in C, with its sizes."""

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

    def task(self, faster: float) -> Task:
        return Task("attend", self._case, faster, len(self.small))

    def _case(self, generator: Any, size: int) -> Case:
        rows, count = self.full if size < 0 else self.small[size]
        inputs = self._inputs(rows, count, generator)
        statistics = [(rows,), (rows, count // PAGE)] if self.has_statistics else []
        shapes = [(rows, self.queries, DIM), *statistics]
        outputs = tuple(guarded(*shape, device=generator.device) for shape in shapes)
        work = guarded(self.work(rows, count), device=generator.device)

        def exact() -> list[Any]:
            return [found.view(shape) for found, shape in zip(self._exact(*inputs), shapes, strict=True)]

        return Case((*inputs, *outputs, work, rows, count), outputs, exact, (work,))

    def _inputs(self, rows: int, count: int, generator: Any) -> tuple[Any, Any, Any]:
        """q, keys and values. A few scores are large, so that the order of sums and maxima matters."""
        import torch

        options: Any = {"generator": generator, "device": generator.device}
        q = 2 * torch.randn(rows, self.queries, DIM, **options)
        keys, values = (torch.randn(rows, count, DIM, **options) for _ in range(2))
        return q, keys, values

    def _exact(self, *inputs: Any) -> list[Any]:
        """The outputs in float64, computed for some rows at a time: the keys in float64 take much memory."""
        import torch

        parts = zip(*(each.split(ROWS_AT_ONCE) for each in inputs), strict=True)
        of_parts = [self._reference(*(each.double() for each in part)) for part in parts]
        return [torch.cat(each) for each in zip(*of_parts, strict=True)]

    def _reference(self, q: Any, keys: Any, values: Any) -> list[Any]:
        scores = q @ keys.mT * SCALE
        found = [scores.softmax(-1) @ values]
        if self.has_statistics:
            logp = scores.log_softmax(-1)
            found += [-(logp.exp() * logp).sum((-1, -2)), scores.view(len(q), -1, PAGE).amax(-1)]
        return found
