# SPDX-License-Identifier: Apache-2.0
"""Clicks on advertisements are foretold from hundreds of fields, each of which has a table of vectors."""

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


class Fields(nn.Module):
    """The vectors of all fields of a row, one after the other."""

    def __init__(self, sizes: list[int], width: int) -> None:
        super().__init__()
        weights = 0.05 * torch.randn(sum(sizes), width, device=DEVICE)
        if MENDED:
            self.table = nn.Embedding.from_pretrained(weights, freeze=False)
            self.register_buffer("starts", torch.tensor([0, *sizes[:-1]], device=DEVICE).cumsum(0))
        else:
            self.tables = nn.ModuleList(
                nn.Embedding.from_pretrained(part.clone(), freeze=False) for part in weights.split(sizes)
            )

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        if MENDED:
            return self.table(codes + self.starts).flatten(1)
        return torch.cat([table(codes[:, number]) for number, table in enumerate(self.tables)], dim=1)


class Cross(nn.Module):
    """Products of fields: each layer multiplies what came in by what is known so far."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width)

    def forward(self, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return first * self.up(self.down(x)) + x


class ClickModel(nn.Module):
    def __init__(self, sizes: list[int], width: int, numbers: int, inner: int) -> None:
        super().__init__()
        self.fields, self.numbers = Fields(sizes, width), nn.Linear(numbers, width)
        full = width * (len(sizes) + 1)
        self.crosses = nn.ModuleList(Cross(full, inner // 4) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(full, inner), nn.ReLU(), nn.Linear(inner, inner), nn.ReLU())
        self.head = nn.Linear(full + inner, 1)

    def forward(self, codes: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        first = torch.cat((self.fields(codes), self.numbers(numbers)), dim=1).to(torch.bfloat16)
        x = first
        for cross in self.crosses:
            x = cross(first, x)
        return self.head(torch.cat((x, self.deep(first)), dim=1))[:, 0]


def main() -> None:
    torch.manual_seed(0)
    rows, fields, width, numbers, inner = (8192, 240, 16, 13, 1024) if DEVICE == "cuda" else (6, 5, 4, 3, 8)
    sizes = [50 + 97 * number % 1500 for number in range(fields)]
    model = ClickModel(sizes, width, numbers, inner).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    most = torch.tensor(sizes, device=DEVICE)
    codes = (torch.rand(4, rows, fields, device=DEVICE) ** 3 * most).long()
    counts = torch.randn(4, rows, numbers, device=DEVICE)
    clicked = (torch.rand(4, rows, device=DEVICE) < 0.2).float()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(codes[step % 4], counts[step % 4])
        loss = F.binary_cross_entropy_with_logits(scores.float(), clicked[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
