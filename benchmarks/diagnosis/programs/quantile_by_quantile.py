# SPDX-License-Identifier: Apache-2.0
"""Readings of meters are made ready for a model: without extremes, in robust units, and as bins."""

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


LEVELS = (0.005, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.995)


class Week:
    """Readings as they came in, a column for each meter."""

    def __init__(self, rows: int, columns: int) -> None:
        self.raw = torch.randn(rows, columns).mul_(3000).clamp_(-32000, 32000).to(torch.int16)
        if DEVICE == "cuda":
            self.raw = self.raw.pin_memory()

    def upload(self) -> torch.Tensor:
        return self.raw.to(DEVICE, non_blocking=True)


class Preparation:
    def __init__(self, columns: int) -> None:
        self.gain = 0.001 + 0.01 * torch.rand(columns, device=DEVICE)
        self.levels = torch.tensor(LEVELS, device=DEVICE)

    def quantiles(self, values: torch.Tensor) -> dict[float, torch.Tensor]:
        """Of each column, for every level."""
        if MENDED:
            rows = torch.quantile(values, self.levels, dim=0).unbind()
        else:
            rows = [torch.quantile(values, level, dim=0) for level in LEVELS]
        return dict(zip(LEVELS, rows, strict=True))

    def __call__(self, week: Week) -> tuple[torch.Tensor, torch.Tensor]:
        values = week.upload() * self.gain
        at = self.quantiles(values)
        values.clamp_(at[0.005], at[0.995])
        robust = (values - at[0.5]) / (at[0.75] - at[0.25])
        edges = torch.stack([at[tenth / 10] for tenth in range(1, 10)], dim=1)
        bins = torch.searchsorted(edges, values.t().contiguous(), out_int32=True)
        return robust.to(torch.bfloat16), bins.to(torch.uint8)


class Summary:
    """Of the weeks so far: how far readings are from the median, and how full the bins are."""

    def __init__(self) -> None:
        self.size, self.bin = torch.zeros(2, device=DEVICE)
        self.weeks = 0

    def add(self, robust: torch.Tensor, bins: torch.Tensor) -> None:
        self.size += robust.abs().mean(dtype=torch.float32)
        self.bin += bins.float().mean()
        self.weeks += 1


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, columns = (60_000, 256) if DEVICE == "cuda" else (60, 3)
    weeks = [Week(rows, columns) for _ in range(3)]
    prepare, summary = Preparation(columns), Summary()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        summary.add(*prepare(weeks[step % 3]))
    report(began, (summary.size + summary.bin) / summary.weeks)


if __name__ == "__main__":
    main()
