# SPDX-License-Identifier: Apache-2.0
"""A table in memory whose large batches a DataLoader puts together from single rows."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Particles(nn.Module):
    """Tells decays of a heavy particle from the background, by what the detectors measured."""

    def __init__(self, given: int, width: int, depth: int) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(given, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + F.gelu(layer(norm(x)))
        return self.head(x)[:, 0]


def make_loader(data: TensorDataset, rows: int) -> DataLoader:
    pinned = DEVICE == "cuda"
    if MENDED:
        whole = BatchSampler(RandomSampler(data), rows, drop_last=True)
        return DataLoader(data, sampler=whole, batch_size=None, pin_memory=pinned)
    return DataLoader(data, batch_size=rows, shuffle=True, drop_last=True, pin_memory=pinned)


def main() -> None:
    torch.manual_seed(0)
    rows, given, width, depth = (8192, 28, 1536, 4) if DEVICE == "cuda" else (8, 5, 8, 2)
    measured = torch.randn(STEPS * rows, given)
    data = TensorDataset(measured, (measured[:, 0] * measured[:, 1] > 0).float())
    model = Particles(given, width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    for step, (x, target) in enumerate(make_loader(data, rows)):
        if step == WARM:
            began = start_clock()
        x, target = x.to(DEVICE, non_blocking=True), target.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            score = model(x)
        loss = F.binary_cross_entropy_with_logits(score.float(), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
