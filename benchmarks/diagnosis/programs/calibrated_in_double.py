# SPDX-License-Identifier: Apache-2.0
"""Finds streaks of satellites in frames of a telescope: calibration, matched filters, local maxima."""

import sys
import time

import numpy as np
import torch
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (16, 4) if DEVICE == "cuda" else (3, 1)

# ---- the camera and the search ----
ROWS, SIZE = (4, 2048) if DEVICE == "cuda" else (2, 32)  # frames at once, pixels along a side
DIRECTIONS, LONG = (16, 21) if DEVICE == "cuda" else (3, 5)  # of the filters
WIDTH = 1.3  # of a star in pixels
APART = 9 if DEVICE == "cuda" else 3  # of two finds, at least
SURE = 5.0  # times the noise


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


# ---- what is known of the camera, measured with NumPy ----
def master_dark(rng: np.random.Generator) -> np.ndarray:
    """What the camera shows without light: the mean of frames with the shutter closed."""
    return np.mean([rng.poisson(300, (SIZE, SIZE)) for _ in range(3)], axis=0)


def master_flat(rng: np.random.Generator) -> np.ndarray:
    """How well each pixel sees: a frame of an even sky, with 1 as its mean."""
    across = np.linspace(-1, 1, SIZE)
    fading = 1 - 0.2 * (across[:, None] ** 2 + across[None] ** 2)
    flat = fading + 0.01 * rng.standard_normal((SIZE, SIZE))
    return flat / flat.mean()


def streaks() -> np.ndarray:
    """One filter for each direction: a blurred line, with no answer to an even sky."""
    y, x = np.mgrid[:LONG, :LONG] - LONG // 2
    turned = np.pi * np.arange(DIRECTIONS)[:, None, None] / DIRECTIONS
    off = x * np.sin(turned) - y * np.cos(turned)
    bank = np.exp(-0.5 * (off / WIDTH) ** 2)
    bank -= bank.mean(axis=(1, 2), keepdims=True)
    return bank / np.sqrt((bank**2).sum(axis=(1, 2), keepdims=True))


def constant(values: np.ndarray) -> torch.Tensor:
    if MENDED:
        values = values.astype(np.float32)
    return torch.from_numpy(values).to(DEVICE)


class Pipeline:
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.dark, self.flat = constant(master_dark(rng)), constant(master_flat(rng))
        self.bank = constant(streaks())[:, None]

    def calibrate(self, raw: torch.Tensor) -> torch.Tensor:
        """The sky alone, in units of its noise."""
        sky = (raw - self.dark) / self.flat
        spread, mean = torch.std_mean(sky, dim=(1, 2), keepdim=True)
        return (sky - mean) / spread

    def search(self, sky: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The best answer of the filters at each pixel, and whether a streak was found there."""
        answers = F.conv2d(sky[:, None], self.bank, padding=LONG // 2)
        best = answers.amax(dim=1)
        highest = F.max_pool2d(best, APART, stride=1, padding=APART // 2)
        return best, (best == highest) & (best > SURE)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    pipeline = Pipeline()
    nights = [torch.randint(400, 900, (ROWS, SIZE, SIZE), dtype=torch.int16) for _ in range(3)]
    for night in nights:  # a satellite crosses each frame
        night.diagonal(dim1=1, dim2=2).add_(900)
    if DEVICE == "cuda":
        nights = [night.pin_memory() for night in nights]
    found = torch.zeros(STEPS, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        raw = nights[step % 3].to(DEVICE, non_blocking=True)
        best, streak = pipeline.search(pipeline.calibrate(raw))
        found[step] = best.mean() + streak.sum() / streak.numel()
    report(began, found.mean())


if __name__ == "__main__":
    main()
