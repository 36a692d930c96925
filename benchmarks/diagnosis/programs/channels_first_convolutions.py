# SPDX-License-Identifier: Apache-2.0
"""A denoiser in bf16 whose images keep the default layout, so that cuDNN transposes them for every layer."""

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


LAYOUT = torch.channels_last if MENDED else torch.contiguous_format


class Denoiser(nn.Module):
    """Predicts the noise in an image with a row of convolutions."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.middle = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first(images), inplace=True)
        for convolution in self.middle:
            y = F.relu(convolution(y), inplace=True)
        return self.last(y)


class NoisyImages:
    """Clean images and noise on the GPU, joined anew for each batch."""

    def __init__(self, rows: int, size: int) -> None:
        self.clean = torch.rand(rows, 3, size, size, device=DEVICE).to(memory_format=LAYOUT)
        self.noise = torch.randn(rows, 3, size, size, device=DEVICE).to(memory_format=LAYOUT)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = self.noise * (0.05 + 0.05 * (number % 4))
        return self.clean + noise, noise


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, data: NoisyImages, number: int) -> torch.Tensor:
    noisy, noise = data[number]
    with torch.autocast(DEVICE, torch.bfloat16):
        guess = model(noisy)
    loss = F.mse_loss(guess.float(), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def main() -> None:
    torch.manual_seed(0)
    rows, size, width, depth = (64, 128, 64, 10) if DEVICE == "cuda" else (2, 8, 8, 2)
    model = Denoiser(width, depth).to(DEVICE, memory_format=LAYOUT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    data = NoisyImages(rows, size)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = fit(model, optimizer, data, step)
    report(began, loss)


if __name__ == "__main__":
    main()
