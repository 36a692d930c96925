# SPDX-License-Identifier: Apache-2.0
"""Clips from a camera are sorted by what people do in them, as their frames come from the decoder."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Camera:
    """Frames as a decoder gives them: rows, columns and colours, in bytes."""

    def __init__(self, clips: int, frames: int, size: int) -> None:
        draw = np.random.default_rng(0)
        self.clips, self.frames, self.at = clips, frames, 0
        self.film = draw.integers(0, 256, (2 * clips * frames, size, size, 3), dtype=np.uint8)

    def read(self) -> list[np.ndarray]:
        """The frames of one batch of clips."""
        wanted = range(self.at, self.at + self.clips * self.frames)
        self.at += len(wanted)
        return [self.film[number % len(self.film)] for number in wanted]


class Preprocess:
    def __init__(self) -> None:
        self.mean = torch.tensor((0.45, 0.45, 0.45)).view(3, 1, 1)
        self.std = torch.tensor((0.225, 0.225, 0.225)).view(3, 1, 1)
        self.mean_there, self.std_there = self.mean.to(DEVICE), self.std.to(DEVICE)

    def one(self, frame: np.ndarray) -> torch.Tensor:
        picture = torch.from_numpy(frame).permute(2, 0, 1).float() / 255.0
        return (picture - self.mean) / self.std

    def __call__(self, frames: list[np.ndarray]) -> torch.Tensor:
        if MENDED:
            raw = torch.from_numpy(np.stack(frames)).to(DEVICE)
            return (raw.permute(0, 3, 1, 2).float() / 255.0 - self.mean_there) / self.std_there
        return torch.stack([self.one(frame) for frame in frames]).to(DEVICE)


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


class Actions(nn.Module):
    """Each frame is read by itself; what was seen goes through time in a small transformer."""

    def __init__(self, size: int, patch: int, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        heads = max(1, width // 64)
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, width))
        self.space = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.time = nn.Sequential(*(Block(width, heads) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, pictures: torch.Tensor, frames: int) -> torch.Tensor:
        x = self.cut(pictures).flatten(2).transpose(1, 2) + self.places
        x = self.space(x).mean(dim=1).unflatten(0, (-1, frames))
        return self.head(self.norm(self.time(x).mean(dim=1)))


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    clips, frames, size, patch, width, depth, kinds = (
        (6, 16, 224, 16, 768, 6, 400) if DEVICE == "cuda" else (2, 3, 8, 4, 16, 1, 5)
    )
    camera, preprocess = Camera(clips, frames, size), Preprocess()
    model = Actions(size, patch, width, depth, kinds).to(DEVICE, torch.bfloat16).eval()
    seen = []
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        pictures = preprocess(camera.read())
        seen.append(model(pictures.to(torch.bfloat16), frames).float().log_softmax(dim=-1).amax(dim=-1))
    report(began, torch.stack(seen).mean())


if __name__ == "__main__":
    main()
