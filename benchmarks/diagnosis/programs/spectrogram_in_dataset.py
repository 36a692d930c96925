# SPDX-License-Identifier: Apache-2.0
"""Birds are told by their songs, which a data set turns into pictures of their pitch."""

import sys
import time
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 10) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Pitch(nn.Module):
    """Sounds as the logarithm of how loud each band of pitch is over time."""

    def __init__(self, points: int, hop: int, bands: int) -> None:
        super().__init__()
        self.points, self.hop = points, hop
        low = torch.linspace(0, 1, bands + 2).square() * (points // 2)
        at = torch.arange(points // 2 + 1).float()
        rise = (at - low[:-2, None]) / (low[1:-1] - low[:-2]).clamp(min=1)[:, None]
        fall = (low[2:, None] - at) / (low[2:] - low[1:-1]).clamp(min=1)[:, None]
        self.register_buffer("filters", torch.minimum(rise, fall).clamp(0, 1))
        self.register_buffer("window", torch.hann_window(points))

    def forward(self, sounds: torch.Tensor) -> torch.Tensor:
        waves = sounds.float() / 32768
        parts = torch.stft(waves, self.points, self.hop, window=self.window, return_complex=True)
        return torch.log(self.filters @ parts.abs().square() + 1e-5)


class Songs(Dataset[tuple[torch.Tensor, int]]):
    """Recordings in memory, of 16 bits, each with the number of a bird."""

    def __init__(self, songs: int, samples: int, birds: int, pitch: Pitch) -> None:
        draw = np.random.default_rng(0)
        self.sounds = draw.integers(-9000, 9000, (64, samples), dtype=np.int16)
        self.birds, self.songs, self.pitch = draw.integers(0, birds, songs), songs, pitch

    def __len__(self) -> int:
        return self.songs

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        sound = torch.from_numpy(self.sounds[number % len(self.sounds)])
        if MENDED:
            return sound, int(self.birds[number])
        return self.pitch(sound), int(self.birds[number])


class Listener(nn.Module):
    def __init__(self, width: int, birds: int) -> None:
        super().__init__()
        sizes = (1, width, 2 * width, 4 * width, 8 * width)
        layers: list[nn.Module] = []
        for given, wanted in pairwise(sizes):
            layers += [nn.Conv2d(given, wanted, 3, 2, 1, bias=False), nn.BatchNorm2d(wanted), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(8 * width, birds)

    def forward(self, pitches: torch.Tensor) -> torch.Tensor:
        x = pitches.to(torch.bfloat16).unsqueeze(1).contiguous(memory_format=torch.channels_last)
        return self.head(self.layers(x).mean(dim=(2, 3))).float()


def main() -> None:
    torch.manual_seed(0)
    rows, samples, points, hop, bands, width, birds = (
        (64, 64000, 1024, 160, 128, 64, 200) if DEVICE == "cuda" else (4, 400, 64, 16, 8, 4, 5)
    )
    workers = 4 if DEVICE == "cuda" else 0
    data = Songs(STEPS * rows, samples, birds, Pitch(points, hop, bands))
    loader = DataLoader(
        data, rows, shuffle=True, num_workers=workers, pin_memory=DEVICE == "cuda", drop_last=True
    )
    pitch = Pitch(points, hop, bands).to(DEVICE)
    model = Listener(width, birds).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    for step, (songs, truth) in enumerate(loader):
        if step == WARM:
            began = start_clock()
        songs, truth = songs.to(DEVICE, non_blocking=True), truth.to(DEVICE, non_blocking=True)
        pitches = pitch(songs) if MENDED else songs
        loss = F.cross_entropy(model(pitches), truth, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
