# SPDX-License-Identifier: Apache-2.0
"""How much power each house will need tomorrow, from what it needed and from the calendar."""

import sys
import time
from datetime import datetime, timezone

import numpy as np
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


class Calendar:
    """Hour, day of the week, day of the month and day of the year, each as a number around zero."""

    def __init__(self, began: int, hours: int) -> None:
        self.began = began
        self.whole = torch.from_numpy(self.marks(np.arange(hours))).to(DEVICE) if MENDED else None

    def marks(self, hours: np.ndarray) -> np.ndarray:
        marks = np.empty((*hours.shape, 4), np.float32)
        for place, hour in np.ndenumerate(hours):
            moment = datetime.fromtimestamp(self.began + 3600 * int(hour), tz=timezone.utc)
            marks[place] = (
                moment.hour / 23 - 0.5,
                moment.weekday() / 6 - 0.5,
                (moment.day - 1) / 30 - 0.5,
                (moment.timetuple().tm_yday - 1) / 365 - 0.5,
            )
        return marks

    def of(self, hours: np.ndarray) -> torch.Tensor:
        if self.whole is not None:
            return F.embedding(uploaded(hours), self.whole)
        return uploaded(self.marks(hours))


def uploaded(values: np.ndarray) -> torch.Tensor:
    ours = torch.from_numpy(values)
    return ours.pin_memory().to(DEVICE, non_blocking=True) if DEVICE == "cuda" else ours


class Forecaster(nn.Module):
    """A word for each hour of the past and of the day to come, of which the need is not known yet."""

    def __init__(self, past: int, ahead: int, width: int, depth: int) -> None:
        super().__init__()
        self.ahead, self.need, self.marks = ahead, nn.Linear(1, width), nn.Linear(4, width)
        self.places = nn.Parameter(0.02 * torch.randn(past + ahead, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, needed: torch.Tensor, marks: torch.Tensor) -> torch.Tensor:
        known = F.pad(needed, (0, self.ahead))[..., None]
        x = self.blocks(self.need(known) + self.marks(marks) + self.places)
        return self.head(self.norm(x[:, -self.ahead :]))[..., 0]


def main() -> None:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    houses, hours, rows, past, ahead, width, depth = (
        (2000, 30000, 128, 336, 24, 384, 4) if DEVICE == "cuda" else (4, 200, 3, 12, 4, 16, 1)
    )
    model = Forecaster(past, ahead, width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    needed = torch.rand(houses * hours, device=DEVICE)
    calendar = Calendar(1609455600, hours)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        first = random.integers(0, hours - past - ahead + 1, (rows, 1))
        window, house = first + np.arange(past + ahead), random.integers(0, houses, (rows, 1))
        need = needed.take(uploaded(house * hours + window))
        with torch.autocast(DEVICE, torch.bfloat16):
            guess = model(need[:, :past], calendar.of(window))
        loss = F.l1_loss(guess.float(), need[:, past:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
