# SPDX-License-Identifier: Apache-2.0
"""Images are cropped, flipped and normalised with NumPy between two steps."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

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


MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32).reshape(3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32).reshape(3, 1, 1)
BATCH, FULL, CROP = (192, 112, 96) if DEVICE == "cuda" else (8, 32, 24)


def upload(array: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(DEVICE, non_blocking=True) if DEVICE == "cuda" else tensor


class Augment:
    """Random crops and flips; both ways draw the same numbers."""

    def __init__(self, images: np.ndarray) -> None:
        self.random = np.random.default_rng(0)
        self.images = images
        self.resident = torch.from_numpy(images).to(DEVICE)
        self.mean, self.std = (torch.from_numpy(array).to(DEVICE) for array in (MEAN, STD))
        self.span = torch.arange(CROP, device=DEVICE)
        self.channels = torch.arange(3, device=DEVICE).view(1, 3, 1, 1)

    def batch(self) -> torch.Tensor:
        picked = self.random.integers(0, len(self.images), BATCH)
        corners = self.random.integers(0, FULL - CROP, (BATCH, 2))
        flips = self.random.random(BATCH) < 0.5
        if MENDED:
            return self.on_device(upload(picked), upload(corners), upload(flips))
        return upload(np.stack([self.one(*item) for item in zip(picked, corners, flips, strict=True)]))

    def one(self, number: int, corner: np.ndarray, flip: bool) -> np.ndarray:
        top, left = corner
        image = self.images[number, :, top : top + CROP, left : left + CROP]
        if flip:
            image = image[:, :, ::-1]
        return (image.astype(np.float32) / 255.0 - MEAN) / STD

    def on_device(self, picked: torch.Tensor, corners: torch.Tensor, flips: torch.Tensor) -> torch.Tensor:
        rows = corners[:, :1] + self.span
        columns = corners[:, 1:] + torch.where(flips[:, None], self.span.flip(0), self.span)
        picked = picked.view(-1, 1, 1, 1)
        crops = self.resident[picked, self.channels, rows[:, None, :, None], columns[:, None, None, :]]
        return (crops.float() / 255.0 - self.mean) / self.std


def network(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inside, outside, stride in ((3, width, 2), (width, width, 1), (width, 2 * width, 2)):
        layers += [nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10))


def main() -> None:
    torch.manual_seed(0)
    model = network(64 if DEVICE == "cuda" else 8).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    augment = Augment(np.random.default_rng(1).integers(0, 256, (512, 3, FULL, FULL), dtype=np.uint8))
    target = torch.randint(0, 10, (BATCH,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        x = augment.batch().contiguous(memory_format=torch.channels_last)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(x), target)

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
