# SPDX-License-Identifier: Apache-2.0
"""A small data set, read in full for every step by workers that start anew each time."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

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


class Spectra(TensorDataset):
    """A few thousand measurements; whole batches are gathered at once."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__(torch.randn(count, size), torch.randn(count))

    def __getitems__(self, numbers: list[int]) -> tuple[torch.Tensor, ...]:
        return self[torch.tensor(numbers)]


def make_loader(data: Spectra, rows: int) -> DataLoader:
    return DataLoader(
        data,
        batch_size=rows,
        num_workers=2,
        collate_fn=tuple,
        pin_memory=DEVICE == "cuda",
        persistent_workers=MENDED,
    )


class Regression(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size if not n else width, width) for n in range(5))
        self.last = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.softplus(layer(x))
        return self.last(x)[:, 0]


class FullBatchTrainer:
    """One step of the optimizer for each pass over the data."""

    def __init__(self, model: nn.Module, loader: DataLoader) -> None:
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")

    def one_pass(self) -> torch.Tensor:
        total = torch.zeros((), device=DEVICE)
        for x, target in self.loader:
            total += self.add_gradient(x.to(DEVICE, non_blocking=True), target.to(DEVICE, non_blocking=True))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    def add_gradient(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            guess = self.model(x)
        loss = F.mse_loss(guess.float(), target) / len(self.loader)
        loss.backward()
        return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    count, rows, size, width = (8192, 2048, 256, 2048) if DEVICE == "cuda" else (32, 8, 8, 16)
    trainer = FullBatchTrainer(Regression(size, width).to(DEVICE), make_loader(Spectra(count, size), rows))
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.one_pass()
    report(began, loss)


if __name__ == "__main__":
    main()
