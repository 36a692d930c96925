# SPDX-License-Identifier: Apache-2.0
"""Sheets of steel are searched for flaws, patch by patch: a flaw is far from all that was seen before."""

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


class Look(nn.Module):
    """Vectors of the patches of a sheet."""

    def __init__(self, points: int, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Linear(points, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        x = self.into(patches.to(self.into.weight.dtype) / 255)
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x.float()


class Normal:
    """Mean and covariance of the vectors of sheets without flaws."""

    def __init__(self, vectors: torch.Tensor) -> None:
        self.mean = vectors.mean(dim=0)
        covariance = torch.cov(vectors.t()) + 0.01 * torch.eye(vectors.shape[1], device=DEVICE)
        self.precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))

    def distances(self, vectors: torch.Tensor) -> torch.Tensor:
        """After Mahalanobis: how far each one is, in units of what is usual in its direction."""
        apart = vectors - self.mean
        if MENDED:
            squares = torch.linalg.vecdot(apart @ self.precision, apart)
        else:
            squares = torch.diag(apart @ self.precision @ apart.t())
        return squares.clamp(min=0).sqrt()


class Belt:
    """Brings one sheet after the other from the cameras, cut into patches."""

    def __init__(self, patches: int, points: int) -> None:
        self.sheets = torch.randint(0, 256, (3, patches, points), dtype=torch.uint8)
        if DEVICE == "cuda":
            self.sheets = self.sheets.pin_memory()

    def sheet(self, number: int) -> torch.Tensor:
        return self.sheets[number % len(self.sheets)].to(DEVICE, non_blocking=True)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    patches, points, width, depth, most = (32768, 768, 2048, 3, 16) if DEVICE == "cuda" else (12, 6, 4, 2, 3)
    model = Look(points, width, depth).to(DEVICE, torch.bfloat16).eval()
    belt = Belt(patches, points)
    normal = Normal(model(belt.sheet(0)))
    found = torch.zeros(STEPS, most, dtype=torch.int64, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        farthest = normal.distances(model(belt.sheet(step))).topk(most)
        found[step] = farthest.indices
    report(began, farthest.values.mean())
    assert int(found.max()) < patches


if __name__ == "__main__":
    main()
