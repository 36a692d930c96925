# SPDX-License-Identifier: Apache-2.0
"""A quantizer that compares each vector with each code by a tensor of all their differences."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (25, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class NearestCode(torch.autograd.Function):
    """Replaces each vector by its nearest code; gradients pass straight through."""

    @staticmethod
    def forward(ctx, vectors: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        nearest = distances(vectors, codes).argmin(dim=-1)
        return F.embedding(nearest, codes)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def distances(vectors: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    if MENDED:  # up to the squared length of each vector, which is the same for all codes
        return codes.square().sum(dim=-1) - 2 * vectors @ codes.T
    differences = vectors[:, None, :] - codes[None, :, :]
    return differences.square().sum(dim=-1)


class Autoencoder(nn.Module):
    def __init__(self, size: int, width: int, code_size: int, codes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(size, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, code_size)
        )
        self.decoder = nn.Sequential(
            nn.Linear(code_size, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, size)
        )
        self.register_buffer("codes", torch.randn(codes, code_size) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            vectors = self.encoder(x)
        coded = NearestCode.apply(vectors.float(), self.codes)
        with torch.autocast(DEVICE, torch.bfloat16):
            again = self.decoder(coded)
        return F.mse_loss(again.float(), x) + 0.25 * F.mse_loss(vectors.float(), coded.detach())


def main() -> None:
    torch.manual_seed(0)
    rows, size, width, codes = (8192, 512, 1024, 1536) if DEVICE == "cuda" else (8, 16, 16, 8)
    model = Autoencoder(size, width, code_size=64 if DEVICE == "cuda" else 4, codes=codes).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    x = torch.randn(rows, size, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = model(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
