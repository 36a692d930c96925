# SPDX-License-Identifier: Apache-2.0
"""An autoencoder with large products in TF32 and a fused optimizer."""

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


class Autoencoder(nn.Module):
    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, code))
        self.decode = nn.Sequential(nn.Linear(code, width), nn.ReLU(inplace=True), nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(x))


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        torch.set_float32_matmul_precision("high")
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")

    def step(self, ratings: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(self.model(ratings), ratings)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    width, code, rows = (4096, 2048, 8192) if DEVICE == "cuda" else (32, 8, 16)
    trainer = Trainer(Autoencoder(width, code).to(DEVICE))
    ratings = torch.randn(rows, width, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(ratings)
    report(began, loss)


if __name__ == "__main__":
    main()
