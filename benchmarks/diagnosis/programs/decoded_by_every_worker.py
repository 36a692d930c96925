# SPDX-License-Identifier: Apache-2.0
"""Satellite tiles from an archive: each worker of the loader unpacks all of them and keeps every fourth."""

import sys
import time
import zlib
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 12) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Tiles(IterableDataset):
    """Tiles in the order of the archive, with the class of the land that they show."""

    def __init__(self, archive: list[bytes], shape: tuple[int, ...], number: int) -> None:
        self.archive, self.shape, self.number = archive, shape, number

    def packed(self) -> Iterator[tuple[int, bytes]]:
        for number in range(self.number):
            yield number, self.archive[number % len(self.archive)]

    def unpack(self, record: tuple[int, bytes]) -> tuple[torch.Tensor, int]:
        number, packed = record
        tile = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(self.shape)
        turned = np.rot90(tile, number % 4, axes=(1, 2))
        return torch.from_numpy(turned.copy()), number % 10

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        if MENDED:
            return map(self.unpack, islice(self.packed(), first, None, every))
        return islice(map(self.unpack, self.packed()), first, None, every)


def make_archive(tiles: int, shape: tuple[int, ...]) -> list[bytes]:
    """Land that changes slowly, with a little noise."""
    rng = np.random.default_rng(0)
    slow = rng.normal(0.0, 2.0, (tiles, *shape)).cumsum(axis=-1) + rng.normal(0.0, 1.0, (tiles, *shape))
    return [zlib.compress(one.tobytes(), 1) for one in (slow % 256).astype(np.uint8)]


class Unit(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


def make_model(bands: int, width: int, depth: int) -> nn.Module:
    units = (Unit(width) for _ in range(depth))
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    model = nn.Sequential(nn.Conv2d(bands, width, 4, 4), *units, *pooled)
    return model.to(DEVICE, memory_format=torch.channels_last)


def main() -> None:
    torch.manual_seed(0)
    rows, bands, side, width, depth, workers = (
        (16, 13, 256, 128, 6, 4) if DEVICE == "cuda" else (2, 3, 16, 8, 1, 2)
    )
    shape = (bands, side, side)
    tiles = Tiles(make_archive(8 if DEVICE == "cuda" else 3, shape), shape, STEPS * rows)
    loader = DataLoader(tiles, batch_size=rows, num_workers=workers, pin_memory=DEVICE == "cuda")
    model = make_model(bands, width, depth)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, fused=DEVICE == "cuda")
    for step, (images, land) in enumerate(loader):
        if step == WARM:
            began = start_clock()
        images, land = images.to(DEVICE, non_blocking=True), land.to(DEVICE, non_blocking=True)
        x = images.to(torch.float32, memory_format=torch.channels_last) / 255.0
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(x)
        loss = F.cross_entropy(scores.float(), land)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
