# SPDX-License-Identifier: Apache-2.0
"""A convolution written as a product with all neighbourhoods of the pixels."""

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


class Filter(nn.Module):
    """A convolution of 3 x 3 pixels whose filters have norm 1."""

    def __init__(self, given: int, wanted: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(wanted, given, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = F.normalize(self.weight.flatten(1), dim=1)
        if MENDED:
            return F.conv2d(x, weight.view_as(self.weight), padding=1)
        around = F.unfold(x, 3, padding=1)
        return (weight @ around).unflatten(-1, x.shape[2:])


class Denoiser(nn.Module):
    """Learns the noise of an image."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.into, self.out = Filter(3, width), Filter(width, 3)
        self.layers = nn.ModuleList(Filter(width, width) for _ in range(depth))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.into(images))
        for layer in self.layers:
            y = y + F.relu(layer(y))
        return self.out(y)


def main() -> None:
    torch.manual_seed(0)
    rows, size, width, depth = (16, 128, 64, 5) if DEVICE == "cuda" else (2, 8, 8, 1)
    model = Denoiser(width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    clean = torch.rand(rows, 3, size, size, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        noise = 0.1 * torch.randn_like(clean)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.mse_loss(model(clean + noise).float(), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
