# SPDX-License-Identifier: Apache-2.0
"""Noise is taken out of recordings: a network says how much of each pitch to keep, at each moment."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (36, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Layer(nn.Module):
    """Looks at some moments before and after."""

    def __init__(self, width: int, apart: int) -> None:
        super().__init__()
        self.mix = nn.Conv1d(width, width, 3, padding=apart, dilation=apart)
        self.out = nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(F.relu(self.mix(x), inplace=True))


class Keeper(nn.Module):
    def __init__(self, pitches: int, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Conv1d(pitches, width, 1)
        self.layers = nn.Sequential(*(Layer(width, 2 ** (number % 4)) for number in range(depth)))
        self.head = nn.Conv1d(width, pitches, 1)

    def forward(self, loudness: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.into(loudness))).sigmoid()


class Pieces:
    """Sound cut into overlapping pieces, and put together again."""

    def __init__(self, points: int, hop: int) -> None:
        self.points, self.hop = points, hop
        self.window = torch.hann_window(points, device=DEVICE).sqrt()

    def cut(self, sound: torch.Tensor) -> torch.Tensor:
        return sound.unfold(1, self.points, self.hop) * self.window

    def joined(self, pieces: torch.Tensor) -> torch.Tensor:
        """Pieces are added where they overlap."""
        pieces = pieces * (self.window * (2 * self.hop / self.points))
        rows, number, points = pieces.shape
        length = self.hop * (number - 1) + points
        if MENDED:
            shape, kernel, stride = (1, length), (1, points), (1, self.hop)
            return F.fold(pieces.transpose(1, 2), shape, kernel, stride=stride)[:, 0, 0]
        sound = torch.zeros(rows, length, device=DEVICE)
        for piece in range(number):
            start = piece * self.hop
            sound[:, start : start + points] += pieces[:, piece]
        return sound


class Cleaner:
    def __init__(self, model: Keeper, pieces: Pieces) -> None:
        self.model, self.pieces = model, pieces

    def __call__(self, sound: torch.Tensor) -> torch.Tensor:
        sound = sound.to(DEVICE, non_blocking=True).float() / 32768
        pitches = torch.fft.rfft(self.pieces.cut(sound))
        loudness = pitches.abs().add(1e-4).log().transpose(1, 2).to(torch.bfloat16)
        keep = self.model(loudness).transpose(1, 2).float()
        return self.pieces.joined(torch.fft.irfft(pitches * keep, n=self.pieces.points))


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, points, hop, number, width, depth = (
        (24, 512, 128, 2496, 512, 6) if DEVICE == "cuda" else (2, 8, 2, 9, 8, 1)
    )
    torch.backends.cudnn.benchmark = True
    model = Keeper(points // 2 + 1, width, depth).to(DEVICE, torch.bfloat16).eval()
    clean = Cleaner(model, Pieces(points, hop))
    sounds = torch.randint(-9000, 9000, (4, rows, hop * (number - 1) + points), dtype=torch.int16)
    if DEVICE == "cuda":
        sounds = sounds.pin_memory()
    loudest = torch.zeros(STEPS, rows, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loudest[step] = clean(sounds[step % 4]).abs().amax(dim=1)
    report(began, loudest.mean())


if __name__ == "__main__":
    main()
