# SPDX-License-Identifier: Apache-2.0
"""A network with a small head for each of many tasks, one after the other."""

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


class Head(nn.Module):
    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class OneByOne(nn.Module):
    def __init__(self, heads: list[Head]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([head(x) for head in self.heads])


class Batched(nn.Module):
    """The same heads, with the weights of all of them in one tensor."""

    def __init__(self, heads: list[Head]) -> None:
        super().__init__()
        parameters = zip(*(head.parameters() for head in heads), strict=True)
        stacked = [torch.stack([*each]).detach() for each in parameters]
        self.up, self.up_bias, self.down, self.down_bias = map(nn.Parameter, stacked)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, self.up.flatten(0, 1), self.up_bias.flatten())
        hidden = F.gelu(hidden).unflatten(-1, self.up_bias.shape).transpose(0, 1)
        return hidden @ self.down.mT + self.down_bias[:, None]


class Tasks(nn.Module):
    def __init__(self, width: int, layers: int, tasks: int, classes: int) -> None:
        super().__init__()
        self.trunk = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        heads = [Head(width, width // 16, classes) for _ in range(tasks)]
        self.heads = Batched(heads) if MENDED else OneByOne(heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.trunk:
            x = F.gelu(layer(x))
        return self.heads(x)


def main() -> None:
    torch.manual_seed(0)
    rows, width, tasks = (4096, 2048, 48) if DEVICE == "cuda" else (16, 32, 6)
    model = Tasks(width, 6, tasks, classes=16).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    x = torch.randn(rows, width, device=DEVICE)
    target = torch.randint(0, 16, (tasks * rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1), target)

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
