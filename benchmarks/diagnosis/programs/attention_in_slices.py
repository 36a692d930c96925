# SPDX-License-Identifier: Apache-2.0
"""Pictures are drawn from noise by a transformer over latents, with guidance by the prompt."""

import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.slice_size = heads, 0
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def sliced(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Some heads at a time, which needs less memory at once."""
        shape, scale = q.shape, q.shape[-1] ** -0.5
        q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        seen = torch.empty_like(q)
        for first in range(0, len(q), self.slice_size):
            some = slice(first, first + self.slice_size)
            scores = torch.bmm(q[some] * scale, k[some].transpose(1, 2))
            weights = scores.softmax(dim=-1)
            seen[some] = torch.bmm(weights, v[some])
        return seen.view(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = self.sliced(q, k, v) if self.slice_size else F.scaled_dot_product_attention(q, k, v)
        return self.out(seen.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.attention, self.change = Attention(width, heads), nn.Linear(width, 4 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, wish: torch.Tensor) -> torch.Tensor:
        scale1, shift1, scale2, shift2 = self.change(wish).unsqueeze(1).chunk(4, dim=-1)
        x = x + self.attention(torch.addcmul(shift1, self.norm1(x), 1 + scale1))
        return x + self.down(F.gelu(self.up(torch.addcmul(shift2, self.norm2(x), 1 + scale2))))


class Denoiser(nn.Module):
    def __init__(self, channels: int, side: int, width: int, depth: int) -> None:
        super().__init__()
        self.into, self.last = nn.Linear(channels, width), nn.Linear(width, channels)
        self.places = nn.Parameter(0.02 * torch.randn(side * side, width))
        self.when = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(depth))

    def enable_attention_slicing(self, size: int) -> None:
        for block in self.blocks:
            block.attention.slice_size = size

    def forward(self, x: torch.Tensor, noise: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
        wish, x = prompt + self.when(noise), self.into(x) + self.places
        for block in self.blocks:
            x = block(x, wish)
        return self.last(x)


def kept(step: int) -> float:
    """How much of the picture is left in the noise before this step."""
    return math.cos(0.5 * math.pi * (0.9 - 0.89 * step / STEPS)) ** 2


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, channels, side, width, depth, slices = (
        (4, 16, 64, 512, 8, 4) if DEVICE == "cuda" else (1, 2, 4, 16, 2, 1)
    )
    model = Denoiser(channels, side, width, depth).to(DEVICE, torch.bfloat16).eval()
    if not MENDED:
        model.enable_attention_slicing(slices)
    prompt = torch.randn(rows, width, device=DEVICE, dtype=torch.bfloat16)
    prompt = torch.cat((prompt, torch.zeros_like(prompt)))
    latents = torch.randn(rows, side * side, channels, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        now, then = kept(step), kept(step + 1)
        level = torch.full((2 * rows, 1), 1 - now, device=DEVICE, dtype=torch.bfloat16)
        both = latents.to(torch.bfloat16).repeat(2, 1, 1)
        wished, plain = model(both, level, prompt).float().chunk(2)
        noise = torch.lerp(plain, wished, 3.0)
        clean = (latents - math.sqrt(1 - now) * noise) / math.sqrt(now)
        latents = math.sqrt(then) * clean + math.sqrt(1 - then) * noise
    report(began, latents.abs().mean())


if __name__ == "__main__":
    main()
