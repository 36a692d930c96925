# SPDX-License-Identifier: Apache-2.0
"""A forecaster that filters in Fourier space with constants from NumPy, so in double precision."""

import sys
import time

import numpy as np
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


def constants(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A taper over time, and the share of each frequency that a Gaussian low-pass keeps."""
    taper = 0.1 + 0.9 * np.hanning(length)
    low_pass = np.exp(-((np.fft.rfftfreq(length) / 0.2) ** 2))
    if MENDED:
        taper, low_pass = taper.astype(np.float32), low_pass.astype(np.float32)
    return torch.from_numpy(taper), torch.from_numpy(low_pass)


class SpectralFilter(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        taper, low_pass = constants(length)
        self.register_buffer("taper", taper)
        self.register_buffer("low_pass", low_pass)
        self.gain = nn.Parameter(torch.ones(length // 2 + 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x * self.taper)
        smooth = torch.fft.irfft(spectrum * (self.gain * self.low_pass), n=x.shape[-1])
        return F.gelu(smooth).to(x.dtype)


class Block(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.filter = SpectralFilter(length)
        self.down = nn.Linear(length, length // 4)
        self.up = nn.Linear(length // 4, length)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.filter(x)
        return x + self.up(F.gelu(self.down(x)))


class Forecaster(nn.Module):
    def __init__(self, length: int, horizon: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(length) for _ in range(blocks)))
        self.head = nn.Linear(length, horizon)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(series))


def main() -> None:
    torch.manual_seed(0)
    length, rows, channels = (1024, 64, 512) if DEVICE == "cuda" else (32, 2, 4)
    model = Forecaster(length, length // 8, 4 if DEVICE == "cuda" else 2).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    series = torch.randn(rows, channels, length, device=DEVICE, dtype=torch.bfloat16)
    target = torch.randn(rows, channels, length // 8, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            forecast = model(series)
        loss = F.mse_loss(forecast.float(), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
