# SPDX-License-Identifier: Apache-2.0
"""Measurements of many sites are brought to one scale, which a few wild values must not move."""

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


class Scaler:
    """How far values are from the median of their row, in units of the median distance from it."""

    def median(self, values: torch.Tensor) -> torch.Tensor:
        middle = values.shape[1] // 2
        if MENDED:
            return values.kthvalue(middle + 1, dim=1, keepdim=True).values
        return values.sort(dim=1).values[:, middle : middle + 1]

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        apart = values - self.median(values)
        return apart / (1.4826 * self.median(apart.abs())).clamp_min(1e-6)


class Alarms:
    """Counts values that are far from normal, by site."""

    def __init__(self, sites: int, limit: float) -> None:
        self.limit, self.scale = limit, Scaler()
        self.seen = torch.zeros(sites, device=DEVICE)

    def add(self, values: torch.Tensor) -> None:
        self.seen += (self.scale(values).abs() > self.limit).float().mean(dim=1)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    sites, values = (2048, 32768) if DEVICE == "cuda" else (4, 33)
    hours = torch.randn(3, sites, values, dtype=torch.float16) * 7 + 20
    if DEVICE == "cuda":
        hours = hours.pin_memory()
    alarms = Alarms(sites, 3.5)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        hour = hours[step % 3].to(DEVICE, non_blocking=True)
        alarms.add(hour.float() + 0.001 * torch.arange(values, device=DEVICE))
    report(began, alarms.seen.mean() / STEPS)


if __name__ == "__main__":
    main()
