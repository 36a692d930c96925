# SPDX-License-Identifier: Apache-2.0
"""A penalty for unusual features whose covariance is inverted on the CPU."""

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


class Unusual(nn.Module):
    """The Mahalanobis distance of features from a moving average of what was seen."""

    def __init__(self, size: int, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("covariance", torch.eye(size))

    @torch.no_grad()
    def update(self, features: torch.Tensor) -> None:
        self.centre.lerp_(features.mean(dim=0), self.momentum)
        centred = features - self.centre
        self.covariance.lerp_(centred.T @ centred / len(features), self.momentum)

    @torch.no_grad()
    def precision(self) -> torch.Tensor:
        ridge = self.covariance + 1e-2 * torch.eye(len(self.centre), device=DEVICE)
        if MENDED:
            return torch.cholesky_inverse(torch.linalg.cholesky_ex(ridge).L)
        return torch.linalg.pinv(ridge.cpu(), hermitian=True).to(DEVICE)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.update(features.detach())
        centred = features - self.centre
        return ((centred @ self.precision()) * centred).sum(dim=-1).mean() / features.shape[-1]


class Classifier(nn.Module):
    def __init__(self, inputs: int, width: int, features: int, classes: int) -> None:
        super().__init__()
        hidden = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        self.body = nn.Sequential(*hidden, nn.Linear(width, features))
        self.head, self.unusual = nn.Linear(features, classes), Unusual(features)

    def loss(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            features = self.body(x)
            logits = self.head(F.relu(features))
        return F.cross_entropy(logits.float(), target) + 0.01 * self.unusual(features.float())


def fit(model: Classifier, x: torch.Tensor, target: torch.Tensor, steps: int) -> tuple[float, torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    for step in range(steps):
        if step == WARM:
            began = start_clock()
        loss = model.loss(x, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return began, loss


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, inputs, width, features = (8192, 1024, 3072, 384) if DEVICE == "cuda" else (16, 16, 32, 8)
    model = Classifier(inputs, width, features, classes=100).to(DEVICE)
    x = torch.randn(rows, inputs, device=DEVICE)
    target = torch.randint(0, 100, (rows,), device=DEVICE)
    report(*fit(model, x, target, STEPS))


if __name__ == "__main__":
    main()
