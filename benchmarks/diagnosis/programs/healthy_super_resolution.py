# SPDX-License-Identifier: Apache-2.0
"""A residual network in bf16 and channels_last that enlarges images in its last layer."""

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


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(F.relu(self.first(x), inplace=True))


class Enlarger(nn.Module):
    def __init__(self, width: int, depth: int, times: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.out = nn.Conv2d(width, 3 * times**2, 3, padding=1)
        self.times = times

    def forward(self, small: torch.Tensor) -> torch.Tensor:
        x = self.into(small)
        return F.pixel_shuffle(self.out(x + self.body(x)), self.times)


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    rows, size, width, depth, times = (32, 96, 256, 12, 2) if DEVICE == "cuda" else (2, 8, 8, 2, 2)
    model = Enlarger(width, depth, times).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    large = torch.rand(rows, 3, times * size, times * size, device=DEVICE)
    small = F.avg_pool2d(large, times).to(memory_format=torch.channels_last)
    seen = torch.zeros((), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            enlarged = model(small)
        loss = F.l1_loss(enlarged.float(), large)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += loss.detach()
    print(f"mean loss {seen.item() / STEPS:.4f}")
    report(began, loss)


if __name__ == "__main__":
    main()
