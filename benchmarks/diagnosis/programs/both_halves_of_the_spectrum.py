# SPDX-License-Identifier: Apache-2.0
"""Recordings of machines are split into bands of pitch, whose strengths tell what wears out."""

import sys
import time

import torch

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Bands:
    """Smooth bands that overlap, as gains of the frequencies of a signal of this length."""

    def __init__(self, points: int, bands: int) -> None:
        self.points = points
        pitch = torch.fft.fftfreq(points, device=DEVICE).abs()
        if MENDED:
            pitch = pitch[: points // 2 + 1]
        centres = torch.linspace(0.02, 0.45, bands, device=DEVICE)
        self.gains = torch.exp(-(((pitch - centres[:, None]) / 0.03) ** 2))

    def split(self, sound: torch.Tensor) -> list[torch.Tensor]:
        if MENDED:
            spectrum = torch.fft.rfft(sound)
            return [torch.fft.irfft(spectrum * gain, n=self.points) for gain in self.gains]
        spectrum = torch.fft.fft(sound)
        return [torch.fft.ifft(spectrum * gain).real for gain in self.gains]


class Watch:
    """Strengths in each band: how loud it is, and how much louder its loudest moment is."""

    def __init__(self, points: int, bands: int) -> None:
        self.bands = Bands(points, bands)

    def __call__(self, sound: torch.Tensor) -> torch.Tensor:
        parts = [(band.square().mean(dim=-1).sqrt(), band.amax(dim=-1)) for band in self.bands.split(sound)]
        loud, most = (torch.stack(part, dim=1) for part in zip(*parts, strict=True))
        return torch.cat((loud.log(), most / loud), dim=1)


def upload(waves: torch.Tensor) -> torch.Tensor:
    return waves.to(DEVICE, non_blocking=True).float() / 32768


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    machines, points, bands = (256, 2**18, 12) if DEVICE == "cuda" else (3, 64, 2)
    waves = torch.randint(-9000, 9000, (2, machines, points), dtype=torch.int16)
    if DEVICE == "cuda":
        waves = waves.pin_memory()
    watch, total = Watch(points, bands), torch.zeros(machines, 2 * bands, device=DEVICE)
    side = torch.cuda.Stream() if DEVICE == "cuda" else None
    sound = upload(waves[0])
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.cuda.stream(side):
            following = upload(waves[(step + 1) % 2])
        total += watch(sound)
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
            sound.record_stream(torch.cuda.current_stream())
        sound = following
    report(began, total.mean() / STEPS)


if __name__ == "__main__":
    main()
