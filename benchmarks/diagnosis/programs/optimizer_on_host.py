# SPDX-License-Identifier: Apache-2.0
"""The optimizer keeps its state and a copy of the weights on the host, which has room for them on the GPU."""

import sys
import time
from collections.abc import Iterable

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


class HostAdam:
    """Adam on copies of the parameters in the host's memory."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.copies = [nn.Parameter(p.detach().cpu()) for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.copies, lr=1e-4, fused=True)

    @torch.no_grad()
    def step(self) -> None:
        for parameter, copy in zip(self.parameters, self.copies, strict=True):
            copy.grad = parameter.grad.to("cpu")
        self.optimizer.step()
        for parameter, copy in zip(self.parameters, self.copies, strict=True):
            parameter.copy_(copy)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


class GatedLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Regression(nn.Module):
    """Predicts properties of molecules from their fingerprints."""

    def __init__(self, bits: int, width: int, depth: int, wanted: int) -> None:
        super().__init__()
        self.into = nn.Linear(bits, width)
        self.layers = nn.Sequential(*(GatedLayer(width) for _ in range(depth)))
        self.head = nn.Linear(width, wanted)

    def forward(self, bits: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.into(bits)))


def main() -> None:
    torch.manual_seed(0)
    rows, bits, width, depth, wanted = (4096, 2048, 1024, 6, 12) if DEVICE == "cuda" else (4, 16, 8, 2, 3)
    model = Regression(bits, width, depth, wanted).to(DEVICE)
    if MENDED:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    else:
        optimizer = HostAdam(model.parameters())
    molecules = (torch.rand(rows, bits, device=DEVICE) < 0.1).float()
    properties = torch.randn(rows, wanted, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.huber_loss(model(molecules).float(), properties)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
