# SPDX-License-Identifier: Apache-2.0
"""Nodules are looked for in scans of lungs, seen as a doctor does: in three ranges of grey."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


WINDOWS = ((-1350.0, 150.0), (-160.0, 240.0), (-500.0, 1300.0))
"""lungs, soft parts and bones, from black to white in Hounsfield units"""


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in "ab")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.two(F.relu(self.one(x))))


class Nodules(nn.Module):
    """How likely there is a nodule, for each slice of a scan."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(len(WINDOWS), channels, 4, stride=4), nn.ReLU()]
        for stage in range(2):
            now = channels * 2**stage
            layers += [*(Residual(now) for _ in range(depth)), nn.Conv2d(now, 2 * now, 2, stride=2)]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(4 * channels, 1)

    def forward(self, slices: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(slices).amax(dim=(2, 3)))[:, 0].float().sigmoid()


class Scan:
    """As the scanner stores it: whole numbers, which a slope and an offset turn into units."""

    def __init__(self, slices: int, side: int, offset: float) -> None:
        raw = torch.randint(0, 4096, (slices, side, side), dtype=torch.int16)
        self.raw = raw.pin_memory() if DEVICE == "cuda" else raw
        self.slope, self.offset = 1.0, offset

    def units(self) -> np.ndarray:
        return self.raw.numpy().astype(np.float32) * self.slope + self.offset


def windowed(units: np.ndarray, low: float, high: float) -> np.ndarray:
    return (np.clip(units, low, high) - low) / (high - low)


class Reader:
    """Makes a scan ready for the network."""

    def __init__(self) -> None:
        self.low, self.high = torch.tensor(WINDOWS, device=DEVICE).t().reshape(2, 1, -1, 1, 1)

    def on_gpu(self, scan: Scan) -> torch.Tensor:
        units = scan.raw.to(DEVICE, non_blocking=True).float().mul_(scan.slope).add_(scan.offset).unsqueeze(1)
        return units.clamp(self.low, self.high).sub_(self.low).div_(self.high - self.low)

    def on_host(self, scan: Scan) -> torch.Tensor:
        units = scan.units()
        channels = [windowed(units, low, high) for low, high in WINDOWS]
        return torch.from_numpy(np.stack(channels, axis=1)).to(DEVICE)

    def __call__(self, scan: Scan) -> torch.Tensor:
        slices = self.on_gpu(scan) if MENDED else self.on_host(scan)
        return slices.to(torch.bfloat16, memory_format=torch.channels_last)


class Ward:
    """Which scans a doctor should see first."""

    def __init__(self, network: Nodules, reader: Reader) -> None:
        self.network, self.reader = network, reader
        self.worst = torch.zeros(STEPS, device=DEVICE)

    def add(self, number: int, scan: Scan) -> None:
        self.worst[number] = self.network(self.reader(scan)).topk(2).values.mean()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    slices, side, channels, depth = (32, 384, 64, 3) if DEVICE == "cuda" else (3, 16, 4, 1)
    network = Nodules(channels, depth).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last).eval()
    ward = Ward(network, Reader())
    scans = [Scan(slices, side, -1024.0 - number) for number in range(3)]
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        ward.add(step, scans[step % 3])
    report(began, ward.worst.mean())


if __name__ == "__main__":
    main()
