# SPDX-License-Identifier: Apache-2.0
"""Labels spread over pictures that look alike, in rounds that each ask whether they still change."""

import sys
import time

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


class Features(nn.Module):
    def __init__(self, given: int, width: int, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(given, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, size)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def alike(features: torch.Tensor) -> torch.Tensor:
    """How strongly any two pictures of an episode are joined, normalised by their degrees."""
    near = torch.exp(-torch.cdist(features, features).square() / features.shape[-1])
    near = near * (1 - torch.eye(near.shape[-1], device=near.device))
    degree = near.sum(dim=-1).rsqrt()
    return degree[:, :, None] * near * degree[:, None]


@torch.no_grad()
def propagate(joined: torch.Tensor, known: torch.Tensor, kept: float, tolerance: float) -> torch.Tensor:
    """Soft labels of all pictures, given those of a few; they flow in until all is still."""
    labels = torch.zeros_like(known)
    for number in range(1, 1001):
        before, labels = labels, torch.baddbmm(known, joined, labels, beta=1 - kept, alpha=kept)
        if MENDED and number % 50:
            continue
        if (labels - before).abs().max() < tolerance:
            break
    return labels / labels.sum(dim=-1, keepdim=True)


def main() -> None:
    torch.manual_seed(0)
    episodes, pictures, shown, classes, given, width, size = (
        (32, 120, 20, 5, 1024, 2048, 256) if DEVICE == "cuda" else (2, 10, 4, 2, 8, 16, 4)
    )
    model, head = Features(given, width, size).to(DEVICE), nn.Linear(size, classes).to(DEVICE)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=DEVICE == "cuda")
    images = torch.randn(episodes, pictures, given, device=DEVICE)
    known = torch.zeros(episodes, pictures, classes, device=DEVICE)
    known[:, :shown] = torch.eye(classes, device=DEVICE).repeat(shown // classes, 1)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            features = model(images)
            scores = head(features)
        wanted = propagate(alike(features.detach().float()), known, 0.99, 1e-5)
        loss = F.cross_entropy(scores.float().flatten(0, 1), wanted.flatten(0, 1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
