# SPDX-License-Identifier: Apache-2.0
"""A moving average of the weights that is updated one parameter after the other in every step."""

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


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.linear(self.norm(x)))


class Net(nn.Module):
    def __init__(self, width: int, layers: int, classes: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


class Average:
    """The exponential moving average of a model's weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        if MENDED:
            torch._foreach_lerp_([*self.weights.values()], [*self.model.parameters()], 1 - self.decay)
            return
        for name, p in self.model.named_parameters():
            self.weights[name] = self.decay * self.weights[name] + (1 - self.decay) * p


class AveragingOptimizer:
    def __init__(self, optimizer: torch.optim.Optimizer, average: Average) -> None:
        self.optimizer, self.average = optimizer, average

    def step(self) -> None:
        self.optimizer.step()
        self.average.update()
        self.optimizer.zero_grad()


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, width, layers = (4096, 512, 80) if DEVICE == "cuda" else (16, 32, 6)
    model = Net(width, layers).to(DEVICE)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    optimizer = AveragingOptimizer(adam, Average(model, 0.999))
    x = torch.randn(rows, width, device=DEVICE)
    target = torch.randint(0, 64, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
