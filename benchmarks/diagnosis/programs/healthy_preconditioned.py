# SPDX-License-Identifier: Apache-2.0
"""Gradients are turned by the inverse curvature of each layer, which one step in ten inverts."""

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


INVERT_EVERY = 10


class Curvature:
    """Averages of what a linear layer gets and of what comes back, and the inverses of both."""

    def __init__(self, layer: nn.Linear, damping: float, decay: float) -> None:
        self.layer, self.damping, self.decay = layer, damping, decay
        sizes = (layer.in_features, layer.out_features)
        self.given, self.returned = (torch.eye(size, device=DEVICE) for size in sizes)
        self.ones = [torch.eye(size, device=DEVICE) for size in sizes]
        self.inverses = [torch.eye(size, device=DEVICE) for size in sizes]
        layer.register_forward_pre_hook(self.see_input)
        layer.register_forward_hook(self.see_output)

    @torch.no_grad()
    def see_input(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        x = inputs[0].to(torch.bfloat16)
        self.given.lerp_((x.T @ x).float() / len(x), 1 - self.decay)

    def see_output(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], y: torch.Tensor) -> None:
        y.register_hook(self.see_gradient)

    @torch.no_grad()
    def see_gradient(self, gradient: torch.Tensor) -> None:
        gradient = gradient.to(torch.bfloat16)
        self.returned.lerp_((gradient.T @ gradient).float() * len(gradient), 1 - self.decay)

    def invert(self) -> None:
        for number, matrix in enumerate((self.given, self.returned)):
            damped = torch.add(matrix, self.ones[number], alpha=self.damping)
            factor, _failed = torch.linalg.cholesky_ex(damped)
            self.inverses[number] = torch.cholesky_solve(self.ones[number], factor)

    def turned(self) -> torch.Tensor:
        given, returned = self.inverses
        return returned @ self.layer.weight.grad @ given


class Classifier(nn.Module):
    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, width, depth, classes = (65_536, 1024, 6, 256) if DEVICE == "cuda" else (8, 16, 2, 4)
    model = Classifier(width, depth, classes).to(DEVICE)
    curvatures = [Curvature(layer, 0.1, 0.95) for layer in model.layers]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=DEVICE == "cuda")
    x = torch.randn(rows, width, device=DEVICE, dtype=torch.bfloat16)
    target = torch.randint(0, classes, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(x), target)
        loss.backward()
        for curvature in curvatures:
            if step % INVERT_EVERY == 0:
                curvature.invert()
            curvature.layer.weight.grad = curvature.turned()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
