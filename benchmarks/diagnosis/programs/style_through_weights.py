# SPDX-License-Identifier: Apache-2.0
"""Pictures are painted after the style of others, by a network whose weights gather gradients, too."""

import sys
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 10) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


PLAN = (64, 64, "pool", 128, 128, "pool", 256, 256, 256, 256, "pool", 512, 512, 512, 512, "pool", 512)
STYLE, CONTENT = (0, 2, 4, 8, 12), 9


class Features(nn.Module):
    """The convolutions of VGG-19, as far as they are needed."""

    def __init__(self, narrower: int) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        channels = 3
        for entry in PLAN:
            if isinstance(entry, int):
                steps.append(nn.Conv2d(channels, entry // narrower, 3, padding=1))
                channels = entry // narrower
            else:
                steps.append(nn.AvgPool2d(2))
        self.steps = nn.ModuleList(steps)

    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for step in self.steps:
            x = step(x)
            if isinstance(step, nn.Conv2d):
                x = F.relu(x, inplace=True)
                yield x


def gram(features: torch.Tensor) -> torch.Tensor:
    flat = features.flatten(2)
    return flat @ flat.mT / flat[0].numel()


class Painter:
    """Moves pictures until their features look like those of the content and the style."""

    def __init__(self, network: nn.Module, content: torch.Tensor, style: torch.Tensor) -> None:
        self.network = network
        with torch.no_grad():
            self.grams = {k: gram(f) for k, f in enumerate(network(style)) if k in STYLE}
            self.content = next(f for k, f in enumerate(network(content)) if k == CONTENT)
        self.picture = content.clone().requires_grad_(True)
        self.optimizer = torch.optim.Adam([self.picture], lr=0.02)

    def loss(self) -> torch.Tensor:
        total = torch.zeros((), device=DEVICE)
        for k, features in enumerate(self.network(self.picture)):
            if k in STYLE:
                total = total + 1e6 * F.mse_loss(gram(features), self.grams[k])
            elif k == CONTENT:
                total = total + F.mse_loss(features, self.content)
        return total

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss


def load_network(narrower: int) -> nn.Module:
    network = Features(narrower).to(DEVICE, memory_format=torch.channels_last).eval()
    for step in network.steps:
        if isinstance(step, nn.Conv2d):
            nn.init.kaiming_normal_(step.weight, nonlinearity="relu")
    return network.requires_grad_(False) if MENDED else network


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, size, narrower = (12, 320, 1) if DEVICE == "cuda" else (1, 32, 16)
    network = load_network(narrower)
    content, style = torch.rand(2, rows, 3, size, size, device=DEVICE)
    painter = Painter(network, content.to(memory_format=torch.channels_last), style)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = painter.step()
    report(began, loss)


if __name__ == "__main__":
    main()
