# SPDX-License-Identifier: Apache-2.0
"""A watch tells what its owner does at each moment, learned from recordings that are not equally long."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 8) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


ROWS, LONGEST, STEP, WIDTH, KINDS = (96, 1024, 128, 256, 12) if DEVICE == "cuda" else (3, 12, 4, 8, 3)
Sample = tuple[torch.Tensor, torch.Tensor]


class Recordings(Dataset):
    """Six sensors and what was done, cut from long days; the watch sits a bit differently each time."""

    def __init__(self, points: int) -> None:
        random = np.random.default_rng(0)
        self.sensors = random.standard_normal((points, 6), dtype=np.float32)
        self.done = random.integers(0, KINDS, points)

    def __len__(self) -> int:
        return STEPS * ROWS

    def __getitem__(self, number: int) -> Sample:
        random = np.random.default_rng(number)
        points = int(random.integers(LONGEST // 2, LONGEST + 1))
        first = int(random.integers(len(self.done) - points))
        scale = 1 + 0.1 * random.standard_normal(6, dtype=np.float32)
        sensors = self.sensors[first : first + points] * scale
        return torch.from_numpy(sensors), torch.from_numpy(self.done[first : first + points].copy())


def joined(samples: list[Sample]) -> Sample:
    """As one batch, filled up at the end; what is done there does not count."""
    longest = max(len(done) for _, done in samples)
    points = -(-longest // STEP) * STEP
    sensors, done = torch.zeros(len(samples), points, 6), torch.full((len(samples), points), -100)
    for row, (one, did) in enumerate(samples):
        sensors[row, : len(one)], done[row, : len(did)] = one, did
    return sensors, done


def as_they_are(samples: list[Sample]) -> list[Sample]:
    return samples


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.BatchNorm1d(width), nn.Conv1d(width, width, 5, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(F.relu(self.norm(x)))


def main() -> None:
    torch.manual_seed(0)
    layers = [Layer(WIDTH) for _ in range(6)]
    model = nn.Sequential(nn.Conv1d(6, WIDTH, 5, padding=2), *layers, nn.Conv1d(WIDTH, KINDS, 1)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    loader = DataLoader(
        Recordings(2_000_000 if DEVICE == "cuda" else 200),
        batch_size=ROWS,
        num_workers=4 if DEVICE == "cuda" else 1,
        collate_fn=joined if MENDED else as_they_are,
        pin_memory=DEVICE == "cuda",
    )
    for step, batch in enumerate(loader):
        if step == WARM:
            began = start_clock()
        sensors, done = batch if MENDED else joined(batch)
        sensors = sensors.to(DEVICE, non_blocking=True).transpose(1, 2)
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(sensors)
        wanted = done.to(DEVICE, non_blocking=True).flatten()
        loss = F.cross_entropy(scores.float().transpose(1, 2).flatten(0, 1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
