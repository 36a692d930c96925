# SPDX-License-Identifier: Apache-2.0
"""A diffusion model of sequences, with times and noise drawn on the GPU and averaged weights."""

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
    """Attention and a perceptron, whose norms are shifted and scaled by the time."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.by_time = nn.Linear(width, 4 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        shift1, scale1, shift2, scale2 = self.by_time(when)[:, None].chunk(4, dim=-1)
        y = torch.addcmul(shift1, self.norm1(x), 1 + scale1)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = torch.addcmul(shift2, self.norm2(x), 1 + scale2)
        return x + self.down(F.gelu(self.up(y)))


class Denoiser(nn.Module):
    def __init__(self, channels: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(channels, width), nn.Linear(width, channels)
        self.register_buffer("frequencies", torch.logspace(0, 3, width // 2))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))

    def forward(self, x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        angles = when[:, None] * self.frequencies
        known = torch.cat((angles.sin(), angles.cos()), dim=-1)
        y = self.into(x)
        for layer in self.layers:
            y = layer(y, known)
        return self.head(y)


def main() -> None:
    torch.manual_seed(0)
    rows, length, channels, width, heads, depth = (
        (32, 1024, 64, 768, 12, 6) if DEVICE == "cuda" else (2, 4, 4, 16, 2, 2)
    )
    model = Denoiser(channels, width, heads, depth).to(DEVICE)
    parameters = list(model.parameters())
    averaged = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=DEVICE == "cuda")
    clean = torch.randn(rows, length, channels, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        when, noise = torch.rand(rows, device=DEVICE), torch.randn_like(clean)
        with torch.autocast(DEVICE, torch.bfloat16):
            moved = model(torch.lerp(clean, noise, when[:, None, None]), when)
        loss = F.mse_loss(moved.float(), noise - clean)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(averaged, parameters, 0.001)
    report(began, loss)


if __name__ == "__main__":
    main()
