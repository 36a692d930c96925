# SPDX-License-Identifier: Apache-2.0
"""A detector's backbone under autocast, whose Mish is written as x * tanh(softplus(x))."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Mish(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mish(x) if MENDED else x * torch.tanh(F.softplus(x))


class Unit(nn.Module):
    """Convolution, normalisation, activation."""

    def __init__(self, given: int, wanted: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(given, wanted, kernel, stride, kernel // 2, bias=False)
        self.norm, self.active = nn.BatchNorm2d(wanted), Mish()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.active(self.norm(self.conv(x)))


class Stage(nn.Module):
    """Halves the picture; one half of the channels goes through the residual units, the other past them."""

    def __init__(self, given: int, wanted: int, depth: int) -> None:
        super().__init__()
        half = wanted // 2
        self.halve = Unit(given, wanted, stride=2)
        self.past, self.into = Unit(wanted, half, 1), Unit(wanted, half, 1)
        self.units = nn.ModuleList(nn.Sequential(Unit(half, half, 1), Unit(half, half)) for _ in range(depth))
        self.join = Unit(wanted, wanted, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.halve(x)
        past, x = self.past(x), self.into(x)
        for unit in self.units:
            x = x + unit(x)
        return self.join(torch.cat((past, x), dim=1))


class Detector(nn.Module):
    """Boxes and classes for each cell of the last two maps."""

    def __init__(self, width: int, depths: tuple[int, ...], answers: int) -> None:
        super().__init__()
        self.stem = Unit(3, width)
        self.stages = nn.ModuleList(Stage(width << k, width << k + 1, deep) for k, deep in enumerate(depths))
        last = width << len(depths)
        self.heads = nn.ModuleList((nn.Conv2d(last // 2, answers, 1), nn.Conv2d(last, answers, 1)))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x, maps = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return [head(x) for head, x in zip(self.heads, maps[-2:], strict=True)]


def loss_of(answers: list[torch.Tensor], wanted: torch.Tensor) -> torch.Tensor:
    total = torch.zeros((), device=wanted.device)
    for answer in answers:
        cells = F.adaptive_max_pool2d(wanted, answer.shape[-2:]).expand(-1, answer.shape[1], -1, -1)
        total = total + F.binary_cross_entropy_with_logits(answer.float(), cells)
    return total


def main() -> None:
    torch.manual_seed(0)
    rows, size, width, depths, answers = (
        (32, 416, 32, (1, 2, 4, 2), 3 * 85) if DEVICE == "cuda" else (2, 32, 4, (1, 1), 7)
    )
    model = Detector(width, depths, answers).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=DEVICE == "cuda")
    images = torch.rand(2, rows, 3, size, size, device=DEVICE)
    wanted = (torch.rand(2, rows, 1, size, size, device=DEVICE) > 0.999).float()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            answers_of_cells = model(images[step % 2].contiguous(memory_format=torch.channels_last))
        loss = loss_of(answers_of_cells, wanted[step % 2])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
