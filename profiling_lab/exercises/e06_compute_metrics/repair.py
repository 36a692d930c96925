# SPDX-License-Identifier: Apache-2.0
"""The three kernels of E06 that can be repaired, on data from a generator."""

from __future__ import annotations

from typing import Any

from profiling_lab.exercises.kernel_repair import Case, Task, guarded

ROW = 32
SMOOTH_FASTER, GROW_FASTER, WALK_FASTER = 4.5, 3.5, 1.5


def smooth(generator: Any, size: int) -> Case:
    import torch

    n, radius = (1 << 24, 8) if size < 0 else ((1, 0), (1000, 3), (40_001, 300))[size]
    values = torch.rand(n, generator=generator, device=generator.device) - 0.5
    out = guarded(n, device=values.device)

    def means() -> list[Any]:
        sums = torch.nn.functional.pad(values.double(), (radius + 1, radius)).cumsum(0)
        return [(sums[2 * radius + 1 :] - sums[: -2 * radius - 1]) / (2 * radius + 1)]

    return Case((values, out, n, radius), (out,), means)


def grow(generator: Any, size: int) -> Case:
    import torch

    n = 1 << 21 if size < 0 else (1, 1000, 40_001)[size]
    device, rate = generator.device, 2.0**-10
    start = 0.1 * torch.rand(n, generator=generator, device=device)
    skewed = torch.rand(n, generator=generator, device=device) ** 8
    steps = (16 + 2000 * skewed).int()
    order = steps.argsort(descending=True).int()
    out = guarded(n, device=device)

    def grown() -> list[Any]:
        x, left = start.double()[order.long()], steps[order.long()]
        active = torch.searchsorted(-left, -torch.arange(int(left[0]), device=device, dtype=left.dtype))
        for count in active.tolist():  # items in order of their steps: the first `count` go on
            part = x[:count]
            part += rate * (1 - part * part)
        return [torch.empty_like(x).scatter_(0, order.long(), x)]

    return Case((start, steps, order, out, n, rate), (out,), grown)


def walk(generator: Any, size: int) -> Case:
    import torch

    nodes, walkers, steps = (
        (1 << 21, 1 << 14, 256) if size < 0 else ((1, 1, 1), (50, 9, 7), (5000, 333, 40))[size]
    )
    device = generator.device
    table = torch.rand((nodes, ROW), generator=generator, device=device) - 0.5
    following = torch.randperm(nodes, generator=generator, device=device)
    table.view(torch.int32)[:, ROW - 1] = following.int()
    first = torch.randint(nodes, (walkers,), generator=generator, device=device).int()
    out = guarded(walkers, ROW - 1, device=device)

    def sums() -> list[Any]:
        node, total = first.long(), torch.zeros((walkers, ROW - 1), dtype=torch.float64, device=device)
        for _ in range(steps):
            total += table[node, : ROW - 1]
            node = following[node]
        return [total]

    return Case((table, first, out, walkers, steps), (out,), sums)


TASKS = (
    Task("run_smooth", smooth, SMOOTH_FASTER),
    Task("run_grow", grow, GROW_FASTER),
    Task("run_walk", walk, WALK_FASTER),
)
