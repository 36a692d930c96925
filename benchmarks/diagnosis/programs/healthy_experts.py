# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts as batched products, with a fixed room for each expert."""

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


class Pack(torch.autograd.Function):
    """Puts each row at its place among `places`; what has no room goes to the one after the last."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, at: torch.Tensor, places: int) -> torch.Tensor:
        ctx.save_for_backward(at)
        return x.new_zeros(places + 1, x.shape[1]).index_copy_(0, at, x)[:-1]

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return F.pad(gradient, (0, 0, 0, 1)).index_select(0, *ctx.saved_tensors), None, None


class Unpack(torch.autograd.Function):
    """The reverse of Pack; rows without room are zero."""

    @staticmethod
    def forward(ctx, y: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(at)
        ctx.places = len(y)
        return F.pad(y, (0, 0, 0, 1)).index_select(0, at)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (at,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.places + 1, gradient.shape[1]).index_copy_(0, at, gradient)[:-1], None


class Experts(nn.Module):
    def __init__(self, experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = self.norm(x).to(x.dtype)
        weight, choice = self.router(normal).softmax(dim=-1).max(dim=-1)
        experts, room = len(self.up), len(x) * 5 // (4 * len(self.up))
        at = places(choice, experts, room)
        packed = Pack.apply(normal, at, experts * room).unflatten(0, (experts, room))
        y = F.gelu(packed @ self.up) @ self.down
        return x + weight[:, None].to(x.dtype) * Unpack.apply(y.flatten(0, 1), at)


def places(choice: torch.Tensor, experts: int, room: int) -> torch.Tensor:
    """The place of each row, so that the rows of one expert follow each other."""
    of, order = choice.sort(stable=True)
    slot = torch.arange(len(of), device=of.device) - torch.searchsorted(of, of)
    at = torch.where(slot < room, of * room + slot, experts * room)
    return torch.empty_like(at).index_copy_(0, order, at)


def main() -> None:
    torch.manual_seed(0)
    rows, experts, width = (32768, 8, 1024) if DEVICE == "cuda" else (64, 4, 16)
    with torch.device(DEVICE):
        model = nn.Sequential(*(Experts(experts, width, 2 * width) for _ in range(4)))
        x = torch.randn(rows, width, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(x).float().square().mean()

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
