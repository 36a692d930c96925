# SPDX-License-Identifier: Apache-2.0
"""A diffusion transformer denoises a large batch of images without gradients."""

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


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class Denoiser(nn.Module):
    def __init__(self, patch: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(patch, width), nn.Linear(width, patch)
        self.times = nn.Embedding(1000, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))

    def forward(self, x: torch.Tensor, time_step: torch.Tensor) -> torch.Tensor:
        return self.out(self.blocks(self.into(x) + self.times(time_step)))


class Sampler:
    """DDIM: the schedule is worked out once, on the host and on the GPU."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.model = model
        self.times = torch.linspace(999, 0, steps + 1, device=DEVICE).long()
        angles = torch.linspace(1.4, 0.0, steps + 1)
        self.signal, self.noise = angles.cos().tolist(), angles.sin().tolist()

    @torch.no_grad()
    def step(self, x: torch.Tensor, number: int) -> torch.Tensor:
        noise = self.model(x, self.times[number])
        clean = (x - self.noise[number] * noise) / self.signal[number]
        return self.signal[number + 1] * clean.clamp(-3, 3) + self.noise[number + 1] * noise


def main() -> None:
    torch.manual_seed(0)
    rows, length, width, heads, layers = (16, 1024, 1024, 16, 6) if DEVICE == "cuda" else (2, 8, 32, 2, 2)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    sampler = Sampler(Denoiser(64, width, heads, layers).to(DEVICE, dtype), STEPS)
    x = torch.randn(rows, length, 64, device=DEVICE, dtype=dtype)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        x = sampler.step(x, step)
    report(began, x.square().mean())


if __name__ == "__main__":
    main()
