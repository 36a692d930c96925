# SPDX-License-Identifier: Apache-2.0
"""Sounds become spectrograms on the GPU, in one batch, and go through convolutions and attention."""

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


class Listener(nn.Module):
    """Which of several words is spoken."""

    def __init__(self, window: int, bands: int, width: int, heads: int, depth: int, words: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(window))
        self.register_buffer("bands", torch.rand(bands, window // 2 + 1))
        self.first = nn.Conv1d(bands, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def spectrum(self, sound: torch.Tensor) -> torch.Tensor:
        size = len(self.window)
        waves = torch.stft(sound, size, size // 4, window=self.window, return_complex=True)
        return torch.log1p(self.bands @ waves.abs())

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, enabled=False):
            seen = self.spectrum(sound)
        y = F.gelu(self.second(F.gelu(self.first(seen))))
        return self.head(self.layers(y.transpose(1, 2)).mean(dim=1))


def main() -> None:
    torch.manual_seed(0)
    rows, samples, window, bands, width, heads, depth, words = (
        (64, 160_000, 400, 80, 512, 8, 6, 35) if DEVICE == "cuda" else (2, 256, 16, 4, 16, 2, 1, 3)
    )
    model = Listener(window, bands, width, heads, depth, words).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    sounds = torch.randn(rows, samples, device=DEVICE)
    target = torch.randint(0, words, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(sounds), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
