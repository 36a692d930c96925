# SPDX-License-Identifier: Apache-2.0
"""A convolution network that permutes its activations between every two layers."""

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


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        if MENDED:
            return x + F.gelu(y)
        y = y.permute(0, 2, 3, 1).contiguous()
        y = F.gelu(y).permute(0, 3, 1, 2).contiguous()
        y = y.permute(0, 2, 3, 1).contiguous()
        y = y.permute(0, 3, 1, 2).contiguous()
        return x + y


def main() -> None:
    torch.manual_seed(0)
    channels, size = (64, 128) if DEVICE == "cuda" else (4, 8)
    model = nn.Sequential(*(Block(channels) for _ in range(4))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    x = torch.randn(64 if DEVICE == "cuda" else 2, channels, size, size, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(x).float().square().mean()

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
