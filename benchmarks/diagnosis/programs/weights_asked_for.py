# SPDX-License-Identifier: Apache-2.0
"""nn.MultiheadAttention returns its weights, which are not read, and so cannot fuse."""

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


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=not MENDED)[0]
        return x + self.mlp(self.norm2(x))


class Spectrogram(nn.Module):
    """Classifies sounds by patches of their spectrogram."""

    def __init__(self, patch: int, patches: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Linear(patch, width)
        self.places = nn.Parameter(0.02 * torch.randn(patches, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, 50)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.into(patches) + self.places).mean(dim=1))


def main() -> None:
    torch.manual_seed(0)
    rows, patch, patches, width, heads, depth = (
        (8, 256, 1536, 768, 12, 6) if DEVICE == "cuda" else (2, 16, 8, 16, 2, 2)
    )
    model = Spectrogram(patch, patches, width, heads, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    sounds = torch.randn(rows, patches, patch, device=DEVICE)
    target = torch.rand(rows, 50, device=DEVICE).round()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.binary_cross_entropy_with_logits(model(sounds), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
