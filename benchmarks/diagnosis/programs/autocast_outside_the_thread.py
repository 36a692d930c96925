# SPDX-License-Identifier: Apache-2.0
"""An ensemble of forecasts whose members run in threads, while autocast is on in the thread that waits."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

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


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Weather(nn.Module):
    """The change of all fields in six hours, on patches of the map."""

    def __init__(self, fields: int, patch: int, width: int, depth: int) -> None:
        super().__init__()
        self.patch = patch
        self.into = nn.Conv2d(fields, width, patch, patch)
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, fields * patch * patch)

    def forward(self, now: torch.Tensor) -> torch.Tensor:
        x = self.into(now)
        high, wide = x.shape[-2:]
        x = self.out(self.norm(self.blocks(x.flatten(2).mT)))
        x = x.unflatten(1, (high, wide)).unflatten(-1, (-1, self.patch, self.patch))
        return now + 0.1 * x.permute(0, 3, 1, 4, 2, 5).reshape(now.shape).float()


class Ensemble:
    """Several forecasts of the same weather, each by a member with weights of its own."""

    def __init__(self, members: list[nn.Module]) -> None:
        self.members = members
        self.pool = ThreadPoolExecutor(len(members), thread_name_prefix="member")

    def run(self, member: nn.Module, now: torch.Tensor) -> torch.Tensor:
        if MENDED:
            with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
                return member(now)
        with torch.no_grad():
            return member(now)

    @torch.autocast(DEVICE, torch.bfloat16)
    def forecast(self, states: list[torch.Tensor]) -> list[torch.Tensor]:
        return list(self.pool.map(self.run, self.members, states))


def spread(states: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(states).std(dim=0).mean()


def main() -> None:
    torch.manual_seed(0)
    members, rows, fields, high, wide, patch, width, depth = (
        (4, 2, 69, 180, 360, 6, 1024, 8) if DEVICE == "cuda" else (2, 1, 3, 8, 16, 4, 16, 1)
    )
    ensemble = Ensemble([Weather(fields, patch, width, depth).to(DEVICE).eval() for _ in range(members)])
    states = [torch.randn(rows, fields, high, wide, device=DEVICE)] * members
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        states = ensemble.forecast(states)
    report(began, spread(states))


if __name__ == "__main__":
    main()
