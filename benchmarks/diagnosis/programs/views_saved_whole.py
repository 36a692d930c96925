# SPDX-License-Identifier: Apache-2.0
"""Pictures of an archive become features, once and for all: each picture gets a file of its own."""

import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (16, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Look(nn.Module):
    """What is seen at each place of a picture; four neighbours that make a square share a place."""

    def __init__(self, side: int, patch: int, width: int, depth: int) -> None:
        super().__init__()
        self.side, self.patch = side, patch
        self.into = nn.Linear(3 * patch**2, width)
        self.places = nn.Parameter(0.02 * torch.randn(side**2, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        patches = F.pixel_unshuffle(pictures.to(self.places.dtype) / 255, self.patch).flatten(2).mT
        x = self.norm(self.blocks(self.into(patches) + self.places))
        return x.unflatten(1, (self.side // 2, 2, self.side // 2, 2)).mean(dim=(2, 4)).flatten(1, 2)


class Features:
    """A folder of files, which a training reads again and again, in any order."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def save(self, names: list[str], features: torch.Tensor) -> None:
        for name, one in zip(names, features.cpu(), strict=True):
            torch.save(one.clone() if MENDED else one, self.folder / f"{name}.pt")

    def read(self, name: str) -> torch.Tensor:
        return torch.load(self.folder / f"{name}.pt")


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, side, patch, width, depth = (48, 14, 16, 768, 12) if DEVICE == "cuda" else (3, 4, 2, 8, 1)
    model = Look(side, patch, width, depth).to(DEVICE, torch.bfloat16).eval()
    pictures = torch.randint(0, 256, (4, rows, 3, side * patch, side * patch), dtype=torch.uint8)
    if DEVICE == "cuda":
        pictures = pictures.pin_memory()
    with tempfile.TemporaryDirectory() as folder:
        files = Features(folder)
        for step in range(STEPS):
            if step == WARM:
                began = start_clock()
            names = [f"{step % 4:04}-{row:04}" for row in range(rows)]
            files.save(names, model(pictures[step % 4].to(DEVICE, non_blocking=True)))
        report(began, files.read(names[-1]).float().square().mean())


if __name__ == "__main__":
    main()
