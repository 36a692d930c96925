# SPDX-License-Identifier: Apache-2.0
"""Measurements of a plant are made ready: in physical units, and each sensor relative to its own day."""

import sys
import time

import torch

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (16, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Day:
    """Rows as they came in: which sensor it was, and what its channels have measured."""

    def __init__(self, rows: int, sensors: int, channels: int) -> None:
        self.sensor = (torch.randperm(rows) % sensors).to(torch.int32)
        self.raw = torch.randint(-30000, 30000, (rows, channels), dtype=torch.int16)
        if DEVICE == "cuda":
            self.sensor, self.raw = self.sensor.pin_memory(), self.raw.pin_memory()

    def upload(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.sensor.to(DEVICE, non_blocking=True), self.raw.to(DEVICE, non_blocking=True)


class Preparation:
    def __init__(self, sensors: int, channels: int) -> None:
        self.sensors = sensors
        self.gain = 0.001 + 0.01 * torch.rand(sensors, channels, device=DEVICE)
        self.offset = torch.randn(sensors, channels, device=DEVICE)

    def physical(self, sensor: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        gain, offset = self.gain.index_select(0, sensor), self.offset.index_select(0, sensor)
        return torch.addcmul(offset, raw.float(), gain)

    def added(self, sensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(self.sensors, values.shape[1], device=DEVICE)
        return total.index_add_(0, sensor, values)

    def standardised(self, sensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Each sensor's values less their mean, in units of their spread."""
        if MENDED:
            count = self.added(sensor, torch.ones_like(values[:, :1]))
            mean = self.added(sensor, values) / count
            apart = values - mean.index_select(0, sensor)
            spread = (self.added(sensor, apart.square()) / (count - 1)).sqrt()
            return apart / spread.index_select(0, sensor)
        result = torch.empty_like(values)
        for number in range(self.sensors):
            mine = sensor == number
            some = values[mine]
            result[mine] = (some - some.mean(dim=0)) / some.std(dim=0)
        return result

    def __call__(self, day: Day) -> torch.Tensor:
        sensor, raw = day.upload()
        values = self.standardised(sensor, self.physical(sensor, raw))
        return values.clamp_(-4, 4).to(torch.bfloat16)


class Summary:
    """Of the days so far: how often values are far from normal, and how large they are."""

    def __init__(self, channels: int) -> None:
        self.far = torch.zeros(channels, device=DEVICE)
        self.size = torch.zeros(channels, device=DEVICE)
        self.days = 0

    def add(self, values: torch.Tensor) -> None:
        self.far += (values.abs() > 1).sum(dim=0) / len(values)
        self.size += values.abs().mean(dim=0)
        self.days += 1


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, sensors, channels = (2_000_000, 400, 8) if DEVICE == "cuda" else (60, 5, 3)
    days = [Day(rows, sensors, channels) for _ in range(3)]
    prepare, summary = Preparation(sensors, channels), Summary(channels)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        summary.add(prepare(days[step % 3]))
    report(began, (summary.far + summary.size).mean() / summary.days)


if __name__ == "__main__":
    main()
