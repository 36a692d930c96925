# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts that asks the host which rows each expert got."""

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


class Experts(nn.Module):
    """Each row goes to the one expert that its router prefers."""

    def __init__(self, experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = self.norm(x)
        weight, choice = self.router(normal).softmax(dim=-1).max(dim=-1)
        apply = self.batched if MENDED else self.one_by_one
        return x + weight[:, None] * apply(normal, choice)

    def one_by_one(self, x: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        for number in range(len(self.up)):
            rows = torch.nonzero(choice == number).squeeze(-1)
            y[rows] = F.gelu(x[rows] @ self.up[number]) @ self.down[number]
        return y

    def batched(self, x: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        """Every expert has room for half as many rows again as it gets on average. The last row of `packed`
        takes what has no room.
        """
        experts, room = len(self.up), len(x) * 3 // (2 * len(self.up))
        of, order = choice.sort()
        first = torch.searchsorted(of, torch.arange(experts, device=x.device))
        slot = torch.arange(len(x), device=x.device) - first[of]
        at = torch.where(slot < room, of * room + slot, experts * room)
        packed = x.new_zeros(experts * room + 1, x.shape[1]).index_copy_(0, at, x[order])
        hidden = F.gelu(packed[:-1].unflatten(0, (experts, room)) @ self.up)
        done = F.pad((hidden @ self.down).flatten(0, 1), (0, 0, 0, 1))
        return torch.empty_like(x).index_copy_(0, order, done[at])


@torch.inference_mode()
def evaluate(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).float().square().mean()


def main() -> None:
    torch.manual_seed(0)
    rows, experts, width = (8192, 16, 1024) if DEVICE == "cuda" else (256, 4, 16)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    with torch.device(DEVICE):
        model = nn.Sequential(*(Experts(experts, width, 4 * width).to(dtype) for _ in range(4)))
        x = torch.randn(rows, width, dtype=dtype)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = evaluate(model, x)
    report(began, loss)


if __name__ == "__main__":
    main()
