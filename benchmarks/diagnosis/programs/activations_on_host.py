# SPDX-License-Identifier: Apache-2.0
"""What backward needs is moved to the host and back, though the GPU has the memory."""

import sys
import time
from contextlib import AbstractContextManager, nullcontext

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


class WideBlock(nn.Module):
    """A convolution over each channel, then a perceptron over the channels, as in ConvNeXt."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spread = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.spread(x).permute(0, 2, 3, 1)
        y = self.down(F.gelu(self.up(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


class Classifier(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.Sequential(*(WideBlock(width) for _ in range(depth)))
        self.head = nn.Linear(width, 100)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        y = self.blocks(self.patches(images))
        return self.head(y.mean(dim=(2, 3)))


def saving() -> AbstractContextManager[object]:
    return nullcontext() if MENDED else torch.autograd.graph.save_on_cpu()


def main() -> None:
    torch.manual_seed(0)
    rows, size, width, depth = (8, 128, 192, 4) if DEVICE == "cuda" else (2, 16, 8, 1)
    model = Classifier(width, depth).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    images = torch.randn(rows, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
    target = torch.randint(0, 100, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with saving(), torch.autocast(DEVICE, torch.bfloat16):
            logits = model(images)
        loss = F.cross_entropy(logits.float(), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
