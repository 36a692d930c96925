# SPDX-License-Identifier: Apache-2.0
"""A diffusion policy captures its network as a CUDA graph again for every request."""

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


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Denoiser(nn.Module):
    """Cleans planned actions, given what the robot sees and how noisy they are."""

    def __init__(self, actions: int, seen: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(actions, width), nn.Linear(width, actions)
        self.seen, self.level = nn.Linear(seen, width), nn.Linear(1, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))

    def forward(self, x: torch.Tensor, seen: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        y = self.into(x) + (self.seen(seen) + self.level(level[None]))[:, None]
        return self.head(self.layers(y))


class Planner:
    """Answers requests from buffers that stay where they are, as a graph wants them."""

    def __init__(self, model: Denoiser, x: torch.Tensor, seen: torch.Tensor, levels: list[float]) -> None:
        self.model, self.x, self.seen = model, torch.zeros_like(x), torch.zeros_like(seen)
        self.levels = torch.tensor(levels, device=x.device, dtype=x.dtype)
        self.now = self.levels[:1].clone()
        self.graph = None
        self.clean()  # libraries load before the first capture

    def clean(self) -> None:
        self.x.sub_(self.model(self.x, self.seen, self.now), alpha=1 / len(self.levels))

    def capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.clean()
        self.graph = graph

    def answer(self, noise: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        self.x.copy_(noise)
        self.seen.copy_(seen)
        if DEVICE == "cuda" and (self.graph is None or not MENDED):
            self.capture()
        for level in self.levels.split(1):
            self.now.copy_(level)
            self.graph.replay() if self.graph else self.clean()
        return self.x.clone()


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    robots, horizon, width, heads, depth, requests = (
        (4, 64, 512, 8, 16, 6) if DEVICE == "cuda" else (2, 4, 16, 2, 2, 2)
    )
    kind = {"device": DEVICE, "dtype": torch.bfloat16}
    model = Denoiser(14, 256, width, heads, depth).to(**kind)
    noise, seen = torch.randn(robots, horizon, 14, **kind), torch.randn(requests, robots, 256, **kind)
    planner = Planner(model, noise, seen[0], [1.0, 0.75, 0.5, 0.25])
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        plans = [planner.answer(noise, one) for one in seen]
    report(began, torch.stack(plans).float().square().mean())


if __name__ == "__main__":
    main()
