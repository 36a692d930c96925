# SPDX-License-Identifier: Apache-2.0
"""Commands are recognised in rooms that echo: each wave is convolved with the echo of its room."""

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


class Rooms(nn.Module):
    """Puts each wave into a room drawn from many, on the GPU."""

    def __init__(self, rooms: int, taps: int) -> None:
        super().__init__()
        fading = torch.exp(-6.0 * torch.arange(taps) / taps)
        echoes = torch.randn(rooms, taps) * fading
        self.register_buffer("echoes", F.normalize(echoes, dim=1))

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        echo = self.echoes[torch.randint(0, len(self.echoes), (len(waves),), device=waves.device)]
        rows, length = waves.shape
        taps = echo.shape[1]
        if MENDED:
            size = 1 << (length + taps - 1).bit_length()
            spectrum = torch.fft.rfft(waves, n=size) * torch.fft.rfft(echo, n=size)
            return torch.fft.irfft(spectrum, n=size)[:, :length]
        before = F.pad(waves, (taps - 1, 0))
        return F.conv1d(before[None], echo.flip(1)[:, None], groups=rows)[0]


class Spectra(nn.Module):
    """Logarithms of the power in bands, as the ear hears them."""

    def __init__(self, size: int, hop: int, bands: int) -> None:
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size))
        self.register_buffer("bands", torch.rand(bands, size // 2 + 1).square())

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(waves, self.size, self.hop, window=self.window, return_complex=True)
        return torch.log(self.bands @ spectrum.abs().square() + 1e-5)


class Recogniser(nn.Module):
    def __init__(self, bands: int, width: int, depth: int, commands: int) -> None:
        super().__init__()
        self.into = nn.Linear(bands, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, commands)

    def forward(self, spectra: torch.Tensor) -> torch.Tensor:
        y = self.into(spectra.transpose(1, 2))
        for layer in self.layers:
            y = layer(y)
        return self.head(y.mean(dim=1))


def main() -> None:
    torch.manual_seed(0)
    rows, length, rooms, taps, size, bands, width, depth = (
        (64, 48_000, 500, 12_000, 512, 80, 256, 4) if DEVICE == "cuda" else (2, 200, 5, 40, 16, 4, 8, 1)
    )
    augment = nn.Sequential(Rooms(rooms, taps), Spectra(size, size // 2, bands)).to(DEVICE)
    model = Recogniser(bands, width, depth, 35).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    waves = torch.randn(rows, length, device=DEVICE)
    commands = torch.randint(0, 35, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.no_grad():
            spectra = augment(waves)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(spectra), commands)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
