# SPDX-License-Identifier: Apache-2.0
"""How much power a region needs tomorrow is learned from windows of what it has needed so far."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Forecaster(nn.Module):
    """Reads patches of the past and says the future of the first column."""

    def __init__(self, columns: int, past: int, ahead: int, patch: int, width: int, depth: int) -> None:
        super().__init__()
        self.patch = patch
        self.into = nn.Linear(patch * columns, width)
        self.places = nn.Parameter(0.02 * torch.randn(past // patch, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, ahead)

    def forward(self, past: torch.Tensor) -> torch.Tensor:
        x = past.unflatten(1, (-1, self.patch)).flatten(2)
        return self.out(self.norm(self.blocks(self.into(x) + self.places)).mean(dim=1))


class Meters:
    """Years of measurements: the load first, then the weather and the calendar."""

    def __init__(self, hours: int, columns: int, past: int, ahead: int) -> None:
        daily = torch.arange(hours, device=DEVICE) * (2 * torch.pi / 24)
        self.values = daily.sin()[:, None] + 0.3 * torch.randn(hours, columns, device=DEVICE)
        self.past, self.ahead = past, ahead

    def windows(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        last = len(self.values) - self.past - self.ahead
        starts = torch.randint(0, last + 1, (rows,), device=DEVICE)
        if MENDED:
            places = starts[:, None] + torch.arange(self.past + self.ahead, device=DEVICE)
            both = self.values[places]
            return both[:, : self.past], both[:, self.past :, 0]
        past = torch.stack([self.values[i : i + self.past] for i in starts])
        future = torch.stack([self.values[i + self.past : i + self.past + self.ahead, 0] for i in starts])
        return past, future


def relative(past: torch.Tensor, future: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """To the mean and the spread of each window, so that summer and winter look alike."""
    mean, spread = past.mean(dim=1, keepdim=True), past.std(dim=1, keepdim=True) + 1e-3
    return (past - mean) / spread, (future - mean[:, :, 0]) / spread[:, :, 0]


def main() -> None:
    torch.manual_seed(0)
    rows, hours, columns, past, ahead, patch, width, depth = (
        (512, 200_000, 16, 512, 48, 16, 384, 4) if DEVICE == "cuda" else (4, 100, 3, 12, 4, 4, 16, 1)
    )
    meters = Meters(hours, columns, past, ahead)
    model = Forecaster(columns, past, ahead, patch, width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        seen, wanted = relative(*meters.windows(rows))
        with torch.autocast(DEVICE, torch.bfloat16):
            told = model(seen)
        loss = F.smooth_l1_loss(told.float(), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    report(began, loss)


if __name__ == "__main__":
    main()
