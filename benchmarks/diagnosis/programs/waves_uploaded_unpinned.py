# SPDX-License-Identifier: Apache-2.0
"""Seizures in recordings of brain waves: a small transformer learns from windows of all electrodes."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Recordings:
    """Windows as the preparation has left them: arrays of floats in memory, in blocks that are shuffled."""

    def __init__(self, blocks: int, rows: int, electrodes: int, samples: int, kinds: int) -> None:
        self.blocks = []
        for _ in range(blocks):
            eeg = torch.randn(rows, electrodes, samples, device=DEVICE).cpu().numpy()
            label = np.random.default_rng(0).integers(0, kinds, rows)
            self.blocks.append(self.tensors({"eeg": eeg, "label": label}))

    @staticmethod
    def tensors(block: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        made = {name: torch.from_numpy(values) for name, values in block.items()}
        if MENDED and DEVICE == "cuda":
            made = {name: values.pin_memory() for name, values in made.items()}
        return made

    def epochs(self) -> Iterator[dict[str, torch.Tensor]]:
        random = np.random.default_rng(1)
        while True:
            for number in random.permutation(len(self.blocks)):
                yield self.blocks[number]


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


class SeizureNet(nn.Module):
    """A token is a short piece of time of all electrodes."""

    def __init__(self, electrodes: int, samples: int, piece: int, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        self.piece, self.stem = piece, nn.Linear(electrodes * piece, width)
        self.places = nn.Parameter(0.02 * torch.randn(samples // piece, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, eeg: torch.Tensor) -> torch.Tensor:
        pieces = eeg.unflatten(2, (-1, self.piece)).transpose(1, 2).flatten(2)
        return self.head(self.norm(self.blocks(self.stem(pieces) + self.places)).mean(dim=1))


def to_device(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: to_device(part) for name, part in batch.items()}
    return batch.to(DEVICE, non_blocking=True)


def standardise(eeg: torch.Tensor) -> torch.Tensor:
    """Each electrode in units of its own spread, in half of the bytes."""
    spread, mean = torch.std_mean(eeg, dim=2, keepdim=True)
    return ((eeg - mean) / (spread + 1e-6)).to(torch.bfloat16)


class Trainer:
    def __init__(self, model: SeizureNet) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")

    def fit(self, recordings: Recordings) -> None:
        for step, batch in enumerate(recordings.epochs()):
            if step == WARM:
                began = start_clock()
            if step == STEPS:
                break
            loss = self.training_step(to_device(batch))
        report(began, loss)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = self.model(standardise(batch["eeg"]))
        loss = F.cross_entropy(scores.float(), batch["label"], label_smoothing=0.05)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    rows, electrodes, samples, piece, width, depth, kinds = (
        (1024, 64, 1024, 32, 512, 4, 4) if DEVICE == "cuda" else (4, 3, 16, 4, 16, 1, 3)
    )
    model = SeizureNet(electrodes, samples, piece, width, depth, kinds).to(DEVICE)
    Trainer(model).fit(Recordings(3, rows, electrodes, samples, kinds))


if __name__ == "__main__":
    main()
