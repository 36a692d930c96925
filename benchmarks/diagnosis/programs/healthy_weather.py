# SPDX-License-Identifier: Apache-2.0
"""Weather of the next days, from many skies that differ a little: each forecast begins where one ended."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (28, 8) if DEVICE == "cuda" else (3, 1)


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
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SixHours(nn.Module):
    """What changes on a grid in six hours. The fields stay in fp32: small changes add up over the days."""

    def __init__(self, fields: int, high: int, wide: int, patch: int, width: int, depth: int) -> None:
        super().__init__()
        self.patch, self.high = patch, high // patch
        self.into, self.head = nn.Linear(fields * patch**2, width), nn.Linear(width, fields * patch**2)
        self.places = nn.Parameter(0.02 * torch.randn(self.high * (wide // patch), width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, sky: torch.Tensor) -> torch.Tensor:
        patches = F.pixel_unshuffle(sky.to(self.places.dtype), self.patch).flatten(2).mT
        x = self.norm(self.blocks(self.into(patches) + self.places))
        change = F.pixel_shuffle(self.head(x).mT.unflatten(2, (self.high, -1)), self.patch)
        return sky.add(change, alpha=0.1)


class Archive:
    """Mean and spread of the forecasts go to the host on a stream of their own, a step behind."""

    def __init__(self, steps: int, fields: int, high: int, wide: int) -> None:
        self.kept = np.zeros((steps, 2, fields, high, wide), np.float16)
        self.stream = torch.cuda.Stream() if DEVICE == "cuda" else None
        self.room = torch.zeros(self.kept.shape[1:], dtype=torch.float16, pin_memory=DEVICE == "cuda")

    def send(self, fields: torch.Tensor) -> None:
        both = torch.stack(torch.var_mean(fields, dim=0)).half()
        if self.stream is None:
            self.room.copy_(both)
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.room.copy_(both, non_blocking=True)
        both.record_stream(self.stream)

    def keep(self, step: int) -> None:
        if self.stream is not None:
            self.stream.synchronize()
        self.kept[step] = self.room.numpy()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    skies, fields, surface, high, wide, patch, width, depth = (
        (16, 64, 4, 128, 256, 4, 1024, 8) if DEVICE == "cuda" else (2, 3, 2, 4, 8, 2, 8, 1)
    )
    model = SixHours(fields, high, wide, patch, width, depth).to(DEVICE, torch.bfloat16).eval()
    sky = torch.randn(1, fields, high, wide, device=DEVICE)
    sky = sky + 0.05 * torch.randn(skies, fields, high, wide, device=DEVICE)
    archive = Archive(STEPS, surface, high, wide)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        later = model(sky)
        if step:
            archive.keep(step - 1)
        archive.send(later[:, :surface])
        sky = later
    archive.keep(STEPS - 1)
    report(began, torch.from_numpy(archive.kept[-1].astype(np.float32)).mean())


if __name__ == "__main__":
    main()
