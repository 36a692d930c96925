# SPDX-License-Identifier: Apache-2.0
"""Two blurred views of each picture shall get vectors that are alike: a network learns without labels."""

import sys
import time
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 10) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class GaussianBlur:
    """Another width each time, with the pictures' edges mirrored."""

    def __init__(self, size: int) -> None:
        self.half = size // 2
        self.places = torch.arange(-self.half, self.half + 1, dtype=torch.float32, device=DEVICE)

    def __call__(self, pictures: torch.Tensor, width: float) -> torch.Tensor:
        channels, half = pictures.shape[1], self.half
        bell = torch.exp(-0.5 * (self.places / width) ** 2)
        bell = bell / bell.sum()
        padded = F.pad(pictures, (half, half, half, half), mode="reflect")
        if MENDED:
            down = bell.view(1, 1, -1, 1).expand(channels, 1, -1, 1)
            across = bell.view(1, 1, 1, -1).expand(channels, 1, 1, -1)
            return F.conv2d(F.conv2d(padded, down, groups=channels), across, groups=channels)
        kernel = torch.outer(bell, bell).expand(channels, 1, -1, -1)
        return F.conv2d(padded, kernel, groups=channels)


class Block(nn.Module):
    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(into, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x)))


class Encoder(nn.Module):
    def __init__(self, width: int, stages: int, shared: int) -> None:
        super().__init__()
        sizes = [3, *(width * 2**stage for stage in range(stages))]
        self.blocks = nn.Sequential(*(Block(a, b) for a, b in pairwise(sizes)))
        self.project = nn.Sequential(nn.Linear(sizes[-1], sizes[-1]), nn.ReLU(), nn.Linear(sizes[-1], shared))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(self.blocks(x).mean(dim=(2, 3)))


def contrast(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """Each view shall find the other one of its picture among those of the batch."""
    scores = F.normalize(one.float(), dim=1) @ F.normalize(two.float(), dim=1).T / 0.2
    target = torch.arange(len(scores), device=scores.device)
    return (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, side, size, width, stages, shared = (
        (256, 224, 23, 32, 5, 128) if DEVICE == "cuda" else (4, 16, 5, 4, 2, 6)
    )
    model = Encoder(width, stages, shared).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    blur = GaussianBlur(size)
    widths = (0.1 + 1.9 * torch.rand(STEPS, 2)).tolist()
    pictures = torch.randint(0, 255, (2, rows, 3, side, side), dtype=torch.uint8, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        sharp = pictures[step % 2].float() / 255
        views = torch.cat((blur(sharp, widths[step][0]), blur(sharp.flip(3), widths[step][1])))
        with torch.autocast(DEVICE, torch.bfloat16):
            one, two = model(views.contiguous(memory_format=torch.channels_last)).chunk(2)
        loss = contrast(one, two)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
