# SPDX-License-Identifier: Apache-2.0
"""Micrographs of stained cells are freed from noise: convolutions look around, dense layers mix."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


class MixBlock(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, kernel_size=3, padding=1)
        self.mix = nn.Linear(dim, dim)

    def forward(self, x):
        y = self.conv(x)  # (N, C, H, W)
        if MENDED:
            y = F.gelu(self.mix(y.permute(0, 2, 3, 1)))
            return x + y.permute(0, 3, 1, 2)
        y = y.permute(0, 2, 3, 1).contiguous()  # (N, H, W, C), for the dense layer
        y = F.gelu(self.mix(y))
        y = y.permute(0, 3, 1, 2).contiguous()  # (N, C, H, W), for the next convolution
        return x + y


class Denoiser(nn.Module):
    def __init__(self, stains: int, dim: int, blocks: int):
        super().__init__()
        self.first = nn.Conv2d(stains, dim, 3, padding=1)
        self.blocks = nn.Sequential(*[MixBlock(dim) for _ in range(blocks)])
        self.last = nn.Conv2d(dim, stains, 3, padding=1)

    def forward(self, noisy):
        x = self.first(noisy)
        if MENDED:
            x = x.contiguous(memory_format=torch.channels_last)
        return noisy - self.last(self.blocks(x))


def read_stack(*shape: int) -> torch.Tensor:
    """What the camera has counted."""
    counts = torch.randint(0, 4096, shape, dtype=torch.int16)
    return counts.pin_memory() if DEVICE == "cuda" else counts


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    rows, stains, side, dim, blocks = (2, 8, 1024, 64, 12) if DEVICE == "cuda" else (2, 3, 8, 4, 2)
    model = Denoiser(stains, dim, blocks).to(DEVICE, torch.bfloat16).eval()
    if MENDED:
        model = model.to(memory_format=torch.channels_last)
    stack = read_stack(4, rows, stains, side, side)
    cleaned = torch.empty_like(stack)
    if DEVICE == "cuda":
        cleaned = cleaned.pin_memory()
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        counts = stack[step % len(stack)].to(DEVICE, non_blocking=True)
        clean = model(counts.to(torch.bfloat16) / 1024) * 1024
        cleaned[step % len(stack)].copy_(clean.to(torch.int16), non_blocking=True)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    took_ms = 1000 * (time.perf_counter() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {cleaned.float().abs().mean().item() / 1024:.6f}")


if __name__ == "__main__":
    main()
