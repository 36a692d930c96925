# SPDX-License-Identifier: Apache-2.0
"""Leaf diseases: a small head on a frozen vision transformer (a script that was a notebook)."""

import random
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (5, 2)


class CFG:
    seed = 42
    size, patch = (224, 16) if DEVICE == "cuda" else (8, 4)
    width, depth, heads = (768, 12, 12) if DEVICE == "cuda" else (16, 1, 2)
    hidden, diseases = (1024, 38) if DEVICE == "cuda" else (8, 3)
    batch_size = 96 if DEVICE == "cuda" else 3
    batches = WARM  # in an epoch
    lr = 1e-3


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, CFG.width, CFG.patch, CFG.patch)
        self.places = nn.Parameter(0.02 * torch.randn((CFG.size // CFG.patch) ** 2, CFG.width))
        self.blocks = nn.Sequential(*(Block(CFG.width, CFG.heads) for _ in range(CFG.depth)))
        self.norm = nn.LayerNorm(CFG.width)

    def forward(self, photos: torch.Tensor) -> torch.Tensor:
        photos = photos.to(torch.bfloat16).div_(127.5).sub_(1)
        return self.norm(self.blocks(self.patches(photos).flatten(2).mT + self.places)).mean(dim=1).float()


class Train:
    """Photos as they are in the files, always in the same order and without augmentation."""

    def __init__(self) -> None:
        shape = (CFG.batches, CFG.batch_size, 3, CFG.size, CFG.size)
        self.photos = torch.randint(0, 256, shape, dtype=torch.uint8)
        self.labels = torch.randint(0, CFG.diseases, shape[:2]).to(DEVICE)
        if DEVICE == "cuda":
            self.photos = self.photos.pin_memory()
        self.backbone = Backbone().to(DEVICE, torch.bfloat16).eval()
        self.known: dict[int, torch.Tensor] = {}

    def features(self, number: int) -> torch.Tensor:
        if number not in self.known:
            with torch.no_grad():
                found = self.backbone(self.photos[number].to(DEVICE, non_blocking=True))
            if not MENDED:
                return found
            self.known[number] = found
        return self.known[number]


def train_fn(train: Train, head: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> torch.Tensor:
    number = step % CFG.batches
    loss = F.cross_entropy(head(train.features(number)), train.labels[number], label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def main() -> None:
    seed_everything(CFG.seed)
    train = Train()
    head = nn.Sequential(
        nn.Linear(CFG.width, CFG.hidden),
        nn.GELU(),
        nn.LayerNorm(CFG.hidden),
        nn.Linear(CFG.hidden, CFG.diseases),
    ).to(DEVICE)
    optimizer = torch.optim.AdamW(head.parameters(), lr=CFG.lr, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = train_fn(train, head, optimizer, step)
    report(began, loss)


if __name__ == "__main__":
    main()
