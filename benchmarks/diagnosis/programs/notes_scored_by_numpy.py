# SPDX-License-Identifier: Apache-2.0
"""A recurrent network writes down which keys of a piano sound; each step is scored."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)
THRESHOLDS = [n / 20 for n in range(2, 19)]


class Transcriber(nn.Module):
    def __init__(self, mels: int, hidden: int, keys: int) -> None:
        super().__init__()
        self.acoustic = nn.Sequential(nn.Linear(mels, hidden), nn.ReLU(), nn.LayerNorm(hidden))
        self.rnn = nn.GRU(hidden, hidden // 2, num_layers=2, batch_first=True, bidirectional=True)
        self.keys = nn.Linear(hidden, keys)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        return self.keys(self.rnn(self.acoustic(mel))[0])


def score_with_numpy(logits: torch.Tensor, roll: torch.Tensor) -> np.ndarray:
    """For each threshold and each key: hits, false alarms and misses."""
    probability = torch.sigmoid(logits).cpu().numpy()
    truth = roll.cpu().numpy() > 0.5
    rows = []
    for threshold in THRESHOLDS:
        guess = probability > threshold
        hits = np.logical_and(guess, truth).sum(axis=(0, 1))
        false = np.logical_and(guess, ~truth).sum(axis=(0, 1))
        missed = np.logical_and(~guess, truth).sum(axis=(0, 1))
        rows.append(np.stack([hits, false, missed]))
    return np.stack(rows)


def score_on_device(logits: torch.Tensor, roll: torch.Tensor) -> torch.Tensor:
    probability, truth = torch.sigmoid(logits), roll > 0.5
    rows = []
    for threshold in THRESHOLDS:
        guess = probability > threshold
        hits = (guess & truth).sum(dim=(0, 1))
        rows.append(torch.stack((hits, guess.sum(dim=(0, 1)) - hits, truth.sum(dim=(0, 1)) - hits)))
    return torch.stack(rows)


def f1(counts: np.ndarray) -> float:
    """Of all keys, with the best of the thresholds."""
    hits, false, missed = counts.sum(axis=2).T
    return float((2 * hits / np.maximum(2 * hits + false + missed, 1)).max())


def main() -> None:
    torch.manual_seed(0)
    rows, frames, mels, hidden, keys = (64, 320, 229, 512, 88) if DEVICE == "cuda" else (2, 6, 5, 8, 3)
    net = Transcriber(mels, hidden, keys).to(DEVICE)
    opt = torch.optim.Adam(net.parameters(), lr=6e-4, fused=DEVICE == "cuda")
    songs = [torch.randn(rows, frames, mels) for _ in range(3)]
    rolls = [(torch.rand(rows, frames, keys) < 0.05).to(torch.uint8) for _ in range(3)]
    if DEVICE == "cuda":
        songs, rolls = [mel.pin_memory() for mel in songs], [roll.pin_memory() for roll in rolls]

    counts = torch.zeros(len(THRESHOLDS), 3, keys, dtype=torch.int64, device=DEVICE)
    if not MENDED:
        counts = counts.cpu().numpy()
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        mel = songs[step % 3].to(DEVICE, non_blocking=True)
        roll = rolls[step % 3].to(DEVICE, non_blocking=True).float()
        logits = net(mel)
        loss = F.binary_cross_entropy_with_logits(logits, roll)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if MENDED:
            counts += score_on_device(logits.detach(), roll)
        else:
            counts += score_with_numpy(logits.detach(), roll)
    last = loss.item()
    took_ms = 1000 * (time.perf_counter() - began) / (STEPS - WARM)
    counts = counts.cpu().numpy() if MENDED else counts
    print(f"f1 {f1(counts):.4f}")
    print(f"step_ms {took_ms:.3f} loss {last:.6f}")


if __name__ == "__main__":
    main()
