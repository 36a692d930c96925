# SPDX-License-Identifier: Apache-2.0
"""Class weights of forty attributes, counted in every step with torch.bincount."""

import sys
import time

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


class Attributes(nn.Module):
    """Predicts one of a few classes for each of many attributes of an image."""

    def __init__(self, width: int, attributes: int, classes: int) -> None:
        super().__init__()
        self.shape = (attributes, classes)
        layers = [(nn.Linear(width, width), nn.GELU()) for _ in range(4)]
        self.trunk = nn.Sequential(*(module for layer in layers for module in layer))
        self.head = nn.Linear(width, attributes * classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.trunk(x)).unflatten(-1, self.shape)


class BalancedLoss(nn.Module):
    """Cross entropy in which the rare classes of each attribute weigh more."""

    def __init__(self, classes: int, rows: int) -> None:
        super().__init__()
        self.classes = classes
        self.register_buffer("ones", torch.ones(rows, dtype=torch.int64))

    def count(self, labels: torch.Tensor) -> torch.Tensor:
        if MENDED:
            return torch.zeros_like(self.ones[: self.classes]).scatter_add_(0, labels, self.ones)
        return torch.bincount(labels, minlength=self.classes)

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        counts = torch.stack([self.count(labels) for labels in target.unbind(1)])
        weights = len(target) / (self.classes * counts.clamp(min=1).float())
        log_p = F.log_softmax(logits.float(), dim=-1).gather(2, target[..., None])[..., 0]
        each = weights.gather(1, target.T).T
        return -(each * log_p).sum() / each.sum()


def main() -> None:
    torch.manual_seed(0)
    width, rows = (2048, 4096) if DEVICE == "cuda" else (32, 32)
    attributes, classes = 40, 12
    model = Attributes(width, attributes, classes).to(DEVICE)
    balanced = BalancedLoss(classes, rows).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    x = torch.randn(rows, width, device=DEVICE)
    target = torch.randint(0, classes, (rows, attributes), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(x)
        loss = balanced(logits, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
