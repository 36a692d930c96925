# SPDX-License-Identifier: Apache-2.0
"""A door opens to people whom it knows: faces are compared with those of all who may come in."""

import sys
import time

import numpy as np
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


class Faces(nn.Module):
    """A vector for each face, of length one."""

    def __init__(self, patch: int, places: int, width: int, depth: int, shared: int) -> None:
        super().__init__()
        self.patch = patch
        self.into = nn.Linear(3 * patch * patch, width)
        self.places = nn.Parameter(0.02 * torch.randn(places, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, shared)

    def forward(self, faces: torch.Tensor) -> torch.Tensor:
        x = faces.to(self.places.dtype).div(127.5).sub(1)
        x = F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)
        x = self.blocks(self.into(x) + self.places)
        return F.normalize(self.head(self.norm(x).mean(dim=1)).float(), dim=1)


class People:
    """Who may come in. Somebody new may be added at any time."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        self.uploaded: torch.Tensor | None = None

    def add(self, vector: np.ndarray) -> None:
        self.vectors = np.concatenate((self.vectors, vector[None] / np.linalg.norm(vector)))
        self.uploaded = None

    def matrix(self) -> torch.Tensor:
        if MENDED:
            if self.uploaded is None:
                self.uploaded = torch.from_numpy(self.vectors).to(DEVICE)
            return self.uploaded
        return torch.from_numpy(self.vectors).to(DEVICE)

    def nearest(self, faces: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        alike = faces @ self.matrix().t()
        best = alike.max(dim=1)
        return best.values, best.indices


class Door:
    def __init__(self, network: Faces, people: People, limit: float) -> None:
        self.network, self.people, self.limit = network, people, limit
        self.alike, self.opened = torch.zeros(2, device=DEVICE)

    def look(self, faces: torch.Tensor) -> torch.Tensor:
        """Who it is, or -1 where no known face is alike enough."""
        alike, who = self.people.nearest(self.network(faces.to(DEVICE, non_blocking=True)))
        self.alike += alike.mean()
        self.opened += (alike > self.limit).sum()
        return torch.where(alike > self.limit, who, -1)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    known, rows, side, patch, width, depth, shared = (
        (120_000, 16, 112, 8, 512, 12, 512) if DEVICE == "cuda" else (30, 2, 16, 8, 16, 1, 6)
    )
    network = Faces(patch, (side // patch) ** 2, width, depth, shared).to(DEVICE, torch.bfloat16).eval()
    people = People(np.random.default_rng(0).standard_normal((known, shared), dtype=np.float32))
    people.add(np.ones(shared, np.float32))
    door = Door(network, people, limit=0.15)
    faces = torch.randint(0, 256, (4, rows, 3, side, side), dtype=torch.uint8)
    if DEVICE == "cuda":
        faces = faces.pin_memory()
    seen = torch.zeros(STEPS, rows, dtype=torch.int64, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        seen[step] = door.look(faces[step % 4])
    report(began, door.alike / STEPS)
    assert int(seen.max()) <= known


if __name__ == "__main__":
    main()
