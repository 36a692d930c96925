# SPDX-License-Identifier: Apache-2.0
"""Echoes of a radar become a picture of what moves and how fast, in ranks that no jammer can shift."""

import sys
import time

import torch

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


class Radar:
    """Finds the pulse that was sent in the echoes, then the pitch of what came back, pulse by pulse."""

    def __init__(self, pulses: int, points: int) -> None:
        turns = torch.linspace(-1, 1, points // 4, device=DEVICE) ** 2 * points / 16
        pulse = torch.polar(torch.hann_window(points // 4, device=DEVICE), 3.14159 * turns)
        self.wanted = torch.fft.fft(pulse, n=points).conj() / pulse.abs().square().sum()
        self.taper = torch.hann_window(pulses, device=DEVICE)[:, None]

    def __call__(self, echoes: torch.Tensor) -> torch.Tensor:
        """The power by speed and distance."""
        near = torch.fft.ifft(torch.fft.fft(echoes) * self.wanted)
        speeds = torch.fft.fft(near * self.taper, dim=-2)
        return torch.view_as_real(speeds).square().sum(dim=-1)


class Ranks:
    """Each cell by the number of those of the same speed that are weaker."""

    def __init__(self, points: int) -> None:
        self.number = torch.arange(points, device=DEVICE, dtype=torch.float32) / points

    def __call__(self, power: torch.Tensor) -> torch.Tensor:
        order = power.argsort(dim=-1)
        return torch.empty_like(power).scatter_(-1, order, self.number.expand_as(order))


class Tracks:
    """What stays where it is stands out: a mean over the last pictures, which is begun anew now and then."""

    def __init__(self, shape: tuple[int, ...], anew: int) -> None:
        self.mean, self.anew = torch.zeros(shape, device=DEVICE), anew
        self.most = torch.zeros(shape[0], device=DEVICE)

    def add(self, step: int, ranks: torch.Tensor) -> None:
        if step % self.anew == 0:
            self.mean.zero_()
        self.mean.lerp_(ranks, 0.2)
        self.most += self.mean.amax(dim=(1, 2))


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    beams, pulses, points = (48, 256, 2048) if DEVICE == "cuda" else (2, 4, 32)
    radar, ranks, tracks = Radar(pulses, points), Ranks(points), Tracks((beams, pulses, points), 8)
    echoes = torch.randn(3, beams, pulses, points, dtype=torch.complex64, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        tracks.add(step, ranks(radar(echoes[step % 3])))
    report(began, tracks.most.mean() / STEPS)


if __name__ == "__main__":
    main()
