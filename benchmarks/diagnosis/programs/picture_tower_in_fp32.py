# SPDX-License-Identifier: Apache-2.0
"""A shop is searched with words: pictures of what it sells get vectors that lie near the words for it."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Tower(nn.Module):
    """Places first, then blocks, then a vector of length one."""

    def __init__(self, into: nn.Module, places: int, width: int, depth: int, shared: int) -> None:
        super().__init__()
        self.into = into
        self.places = nn.Parameter(0.02 * torch.randn(places, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, shared, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        x = self.blocks(x + self.places[: x.shape[1]])
        return F.normalize(self.head(self.norm(x).mean(dim=1)).float(), dim=1)


class Patches(nn.Module):
    """Bytes of a picture become a row for each of its patches."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.patch, self.into = patch, nn.Linear(3 * patch * patch, width)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        rows, colours, high, wide = pictures.shape
        x = pictures.view(rows, colours, high // self.patch, self.patch, wide // self.patch, self.patch)
        x = x.permute(0, 2, 4, 1, 3, 5).reshape(rows, -1, colours * self.patch**2)
        return self.into(x.to(self.into.weight.dtype).div_(127.5).sub_(1))


class Towers:
    """Both are loaded as their checkpoints are, and made ready to serve."""

    def __init__(self, words: Tower, pictures: Tower) -> None:
        self.words = self.serve(words, half=True)
        self.pictures = self.serve(pictures, half=MENDED)

    def serve(self, tower: Tower, half: bool) -> Tower:
        tower = tower.eval().requires_grad_(False).to(DEVICE)
        return tower.to(torch.bfloat16) if half else tower


class Catalogue:
    """Vectors of the newest pictures; the oldest give way."""

    def __init__(self, size: int, shared: int) -> None:
        self.vectors = torch.zeros(size, shared, device=DEVICE)
        self.next = 0

    def add(self, vectors: torch.Tensor) -> None:
        self.vectors[self.next : self.next + len(vectors)] = vectors
        self.next = (self.next + len(vectors)) % len(self.vectors)

    def search(self, asked: torch.Tensor, most: int) -> torch.Tensor:
        return (asked @ self.vectors.t()).topk(most, dim=1).values


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, side, patch, width, depth, shared, vocabulary, length, most = (
        (96, 224, 16, 768, 12, 512, 30000, 24, 10) if DEVICE == "cuda" else (3, 16, 8, 16, 1, 8, 30, 5, 2)
    )
    words = Tower(nn.Embedding(vocabulary, width // 2), length, width // 2, depth // 2 or 1, shared)
    pictures = Tower(Patches(patch, width), (side // patch) ** 2, width, depth, shared)
    towers, catalogue = Towers(words, pictures), Catalogue(rows * 8, shared)
    asked = torch.randint(0, vocabulary, (4, 32, length), device=DEVICE)
    photos = torch.randint(0, 256, (4, rows, 3, side, side), dtype=torch.uint8)
    if DEVICE == "cuda":
        photos = photos.pin_memory()
    near = torch.zeros((), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        catalogue.add(towers.pictures(photos[step % 4].to(DEVICE, non_blocking=True)))
        near += catalogue.search(towers.words(asked[step % 4]), most).mean()
    report(began, near / STEPS)


if __name__ == "__main__":
    main()
