# SPDX-License-Identifier: Apache-2.0
"""A pool of threads unpacks recordings, and each is waited for before the next one is handed over."""

import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
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


class Archive:
    """Compressed recordings in memory, unpacked by a pool of threads."""

    def __init__(self, count: int, samples: int, threads: int) -> None:
        random = np.random.default_rng(0)
        sounds = random.integers(-40, 40, (count, samples), dtype=np.int16)
        self.packed = [zlib.compress(sound.tobytes(), 1) for sound in sounds]
        self.pool = ThreadPoolExecutor(threads)

    def unpack(self, number: int) -> np.ndarray:
        sound = np.frombuffer(zlib.decompress(self.packed[number]), dtype=np.int16)
        return sound.astype(np.float32) / 40.0

    def batch(self, numbers: list[int]) -> torch.Tensor:
        if MENDED:
            waiting = [self.pool.submit(self.unpack, number) for number in numbers]
            sounds = [one.result() for one in waiting]
        else:
            sounds = [self.pool.submit(self.unpack, number).result() for number in numbers]
        return torch.from_numpy(np.stack(sounds))


class Listener(nn.Module):
    """Which of a few birds sings, from the sound cut into pieces."""

    def __init__(self, piece: int, width: int, depth: int, birds: int) -> None:
        super().__init__()
        self.piece, self.into = piece, nn.Linear(piece, width)
        parts = ((nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Sequential(*part) for part in parts)
        self.head = nn.Linear(width, birds)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        x = self.into(sound.unflatten(1, (-1, self.piece)))
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.mean(dim=1))


def main() -> None:
    torch.manual_seed(0)
    count, samples, rows, piece, width, depth = (
        (64, 160_000, 48, 320, 1024, 6) if DEVICE == "cuda" else (6, 160, 4, 16, 8, 2)
    )
    archive = Archive(count, samples, threads=8)
    model = Listener(piece, width, depth, 20).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    singers = torch.randint(0, 20, (count,), device=DEVICE)
    order = [torch.randperm(count)[:rows] for _ in range(STEPS)]
    for step, numbers in enumerate(order):
        if step == WARM:
            began = start_clock()
        sounds = archive.batch(numbers.tolist()).to(DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            guess = model(sounds)
        loss = F.cross_entropy(guess.float(), singers[numbers.to(DEVICE)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
