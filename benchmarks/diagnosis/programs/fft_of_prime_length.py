# SPDX-License-Identifier: Apache-2.0
"""Long convolutions by Fourier transforms, padded to the shortest length that fits, which is a prime."""

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


class LongConvolution(nn.Module):
    """Each channel has a filter as long as the sequence. Both are padded, so that nothing wraps around."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        decay = torch.exp(-8.0 * torch.arange(length) / length)
        self.filter = nn.Parameter(torch.randn(width, length) * decay / length**0.5)
        self.padded = 2 * length if MENDED else 2 * length - 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.fft.rfft(x.float(), n=self.padded)
        response = torch.fft.rfft(self.filter, n=self.padded)
        return torch.fft.irfft(seen * response, n=self.padded)[..., : x.shape[-1]].to(x.dtype)


class Block(nn.Module):
    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.mix = LongConvolution(width, length)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.into(self.norm(x)).chunk(2, dim=-1)
        return x + self.out(self.mix(value.mT).mT * F.silu(gate))


class Model(nn.Module):
    def __init__(self, inputs: int, width: int, length: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Linear(inputs, width)
        self.blocks = nn.Sequential(*(Block(width, length) for _ in range(depth)))
        self.head = nn.Linear(width, inputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.into(x)))


def main() -> None:
    torch.manual_seed(0)
    rows, inputs, width, length, depth = (8, 16, 512, 4096, 4) if DEVICE == "cuda" else (2, 4, 8, 16, 2)
    model = Model(inputs, width, length, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    signal = torch.randn(rows, length + 1, inputs, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.mse_loss(model(signal[:, :-1]).float(), signal[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
