# SPDX-License-Identifier: Apache-2.0
"""Two towers learn which caption belongs to which picture: a large table of similarities in bf16."""

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


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.glu(self.up(self.norm(x)), dim=-1))


def tower(inputs: int, width: int, depth: int, shared: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width), *(Gated(width) for _ in range(depth)), nn.Linear(width, shared)
    )


class Contrastive(nn.Module):
    def __init__(self, pictures: nn.Module, captions: nn.Module) -> None:
        super().__init__()
        self.pictures, self.captions = pictures, captions
        self.log_scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, pictures: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
        left = F.normalize(self.pictures(pictures), dim=-1)
        right = F.normalize(self.captions(captions), dim=-1)
        similar = (left * self.log_scale.exp()) @ right.T
        same = torch.arange(len(similar), device=similar.device)
        return (F.cross_entropy(similar, same) + F.cross_entropy(similar.T, same)) / 2


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")

    def step(self, pictures: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = self.model(pictures, captions)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    rows, inputs, width, depth, shared = (8192, 768, 1280, 4, 512) if DEVICE == "cuda" else (8, 8, 16, 1, 8)
    model = Contrastive(tower(inputs, width, depth, shared), tower(inputs, width, depth, shared))
    trainer = Trainer(model.to(DEVICE))
    pictures, captions = torch.randn(2, rows, inputs, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(pictures, captions)
    report(began, loss)


if __name__ == "__main__":
    main()
