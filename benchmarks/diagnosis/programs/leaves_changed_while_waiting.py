# SPDX-License-Identifier: Apache-2.0
"""Spots of disease on leaves are outlined (a course project): photographs are changed a little each time."""

import sys
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)
WORKERS = 8 if DEVICE == "cuda" else 1
MEAN, STD = np.float32([0.41, 0.49, 0.33]), np.float32([0.21, 0.18, 0.2])
Transform = Callable[[np.ndarray, np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


def random_crop(size: int) -> Transform:
    def crop(img: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        top, left = rng.integers(0, img.shape[0] - size + 1, 2)
        here = slice(top, top + size), slice(left, left + size)
        return img[here], mask[here]

    return crop


def random_flip(img: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return (img[:, ::-1], mask[:, ::-1]) if rng.random() < 0.5 else (img, mask)


def color_jitter(
    img: np.ndarray, mask: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    img = np.power(img.astype(np.float32) / 255, np.float32(rng.uniform(0.8, 1.25)))
    grey = img.mean(axis=2, keepdims=True)
    img = grey + np.float32(rng.uniform(0.7, 1.3)) * (img - grey)
    return img + np.float32(0.02) * rng.standard_normal(img.shape, dtype=np.float32), mask


def normalize(img: np.ndarray, mask: np.ndarray, _: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return (img - MEAN) / STD, mask


class LeafDataset(Dataset):
    def __init__(self, length: int, photos: int, side: int, transforms: list[Transform]) -> None:
        rng = np.random.default_rng(0)
        self.length, self.transforms = length, transforms
        self.images = rng.integers(0, 256, (photos, side, side, 3), dtype=np.uint8)
        self.masks = self.images[..., 0] // 64

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        rng = np.random.default_rng(idx)
        img, mask = self.images[idx % len(self.images)], self.masks[idx % len(self.masks)]
        for transform in self.transforms:
            img, mask = transform(img, mask, rng)
        img = np.ascontiguousarray(img.transpose(2, 0, 1))
        return torch.from_numpy(img), torch.from_numpy(mask.copy())


def double_conv(before: int, after: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        self.downs = nn.ModuleList(double_conv(a, b) for a, b in zip([3, *widths], widths, strict=False))
        pairs = [*pairwise(widths)][::-1]
        self.ups = nn.ModuleList(double_conv(a + b, a) for a, b in pairs)
        self.outc = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        for down in self.downs:
            x = down(F.max_pool2d(seen[-1], 2) if seen else x)
            seen.append(x)
        for up, skip in zip(self.ups, seen[-2::-1], strict=True):
            x = up(torch.cat((skip, F.interpolate(x, scale_factor=2)), dim=1))
        return self.outc(x)


def get_loader(rows: int, photos: int, side: int, crop: int) -> DataLoader:
    transforms: list[Transform] = [random_crop(crop), random_flip, color_jitter, normalize]
    dataset = LeafDataset(STEPS * rows, photos, side, transforms)
    workers = WORKERS if MENDED else 0
    return DataLoader(dataset, batch_size=rows, num_workers=workers, pin_memory=DEVICE == "cuda")


def train_step(net: UNet, optimizer: torch.optim.Optimizer, batch: list[torch.Tensor]) -> torch.Tensor:
    imgs, masks = (part.to(DEVICE, non_blocking=True) for part in batch)
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = F.cross_entropy(net(imgs.contiguous(memory_format=torch.channels_last)), masks.long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    rows, photos, side, crop, widths = (
        (16, 96, 320, 224, [32, 64, 128, 256]) if DEVICE == "cuda" else (2, 4, 12, 8, [4, 8])
    )
    net = UNet(widths, 4).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    for step, batch in enumerate(get_loader(rows, photos, side, crop)):
        if step == WARM:
            began = start_clock()
        loss = train_step(net, optimizer, batch)
    report(began, loss)


if __name__ == "__main__":
    main()
