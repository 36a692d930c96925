# SPDX-License-Identifier: Apache-2.0
"""Training that prepares a layer for 8 bits: it is compiled, and its observer counts its calls."""

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


class Observer(nn.Module):
    """Scale of eight bits, from the average of the largest values that the batches so far had."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.ones(()))
        if MENDED:
            self.register_buffer("calls", torch.zeros(()))
        else:
            self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.largest += (x.detach().abs().amax() - self.largest) / self.calls
        return self.largest / 127


class QuantizedLinear(nn.Linear):
    def __init__(self, given: int, wanted: int) -> None:
        super().__init__(given, wanted)
        self.observer = Observer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.observer(x)
        rounded = (x / scale).round().clamp(-128, 127) * scale
        return F.linear(x + (rounded - x).detach(), self.weight, self.bias)


class Classifier(nn.Module):
    """A body in full precision, whose wide head shall run with eight bits."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = QuantizedLinear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.cache_size_limit = 128
    rows, width, depth, classes = (16384, 2048, 6, 1000) if DEVICE == "cuda" else (8, 16, 2, 4)
    model = Classifier(width, depth, classes).to(DEVICE)
    model.head.compile(backend="aot_eager" if DEVICE == "cuda" else "eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    x = torch.randn(rows, width, device=DEVICE)
    target = torch.randint(0, classes, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
