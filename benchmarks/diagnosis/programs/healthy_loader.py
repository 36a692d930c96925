# SPDX-License-Identifier: Apache-2.0
"""Convolutions on images that two workers load into pinned memory, ready before they are needed."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (15, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


BATCH, SIDE, WIDTH = (256, 64, 128) if DEVICE == "cuda" else (4, 16, 8)


class Images(Dataset):
    """Bytes in memory; a whole batch is gathered at once."""

    def __init__(self, count: int) -> None:
        self.pixels = np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return 2 * STEPS * BATCH

    def __getitems__(self, numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
        labels = np.array(numbers)
        return self.pixels[labels % len(self.pixels)], labels % 10


def collate(batch: tuple[np.ndarray, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(batch[0]), torch.from_numpy(batch[1])


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, WIDTH, 3, padding=1, bias=False)]
        for stride in (1, 1, 2, 1):
            layers += [
                nn.BatchNorm2d(WIDTH),
                nn.ReLU(),
                nn.Conv2d(WIDTH, WIDTH, 3, stride, 1, bias=False),
            ]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = pixels.permute(0, 3, 1, 2).to(torch.bfloat16).div_(127.5).sub_(1.0)
        return self.head(self.features(x).mean((2, 3)))


def main() -> None:
    torch.manual_seed(0)
    model = Network().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    loader = DataLoader(
        Images(2048 if DEVICE == "cuda" else 16),
        batch_size=BATCH,
        num_workers=2,
        collate_fn=collate,
        pin_memory=DEVICE == "cuda",
        persistent_workers=True,
    )
    for step, (pixels, label) in zip(range(STEPS), loader, strict=False):
        if step == WARM:
            began = start_clock()
        pixels, label = pixels.to(DEVICE, non_blocking=True), label.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(pixels), label)

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
