# SPDX-License-Identifier: Apache-2.0
"""A mixer of patches with clipped gradients and a moving average of its weights, all in fused operations."""

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


class AcrossPatches(nn.Module):
    """A linear layer over the patches, from the left, so that nothing needs to be transposed."""

    def __init__(self, given: int, wanted: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(wanted, given) / given**0.5)
        self.bias = nn.Parameter(torch.zeros(wanted, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, self.weight.expand(len(x), -1, -1), x)


class MixerLayer(nn.Module):
    """Mixes the patches of each channel, then the channels of each patch."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.between = nn.Sequential(
            AcrossPatches(patches, 2 * patches), nn.GELU(), AcrossPatches(2 * patches, patches)
        )
        self.within = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.between(self.norm1(x))
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, pixels: int, patches: int, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Linear(pixels, width)
        self.layers = nn.Sequential(*(MixerLayer(patches, width) for _ in range(depth)))
        self.head = nn.Linear(width, 100)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.into(patches)).mean(dim=1))


class Average:
    """Weights that follow those of the model slowly."""

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        self.decay, self.followed = decay, list(model.parameters())
        self.weights = [p.detach().clone() for p in self.followed]

    @torch.no_grad()
    def follow(self) -> None:
        torch._foreach_lerp_(self.weights, self.followed, 1 - self.decay)


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model, self.average = model, Average(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)

    def step(self, patches: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(self.model(patches), target, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=DEVICE == "cuda")
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.average.follow()
        return loss


def main() -> None:
    torch.manual_seed(0)
    rows, pixels, patches, width, depth = (64, 768, 256, 768, 8) if DEVICE == "cuda" else (4, 12, 8, 16, 2)
    trainer = Trainer(Mixer(pixels, patches, width, depth).to(DEVICE))
    images = torch.randn(rows, patches, pixels, device=DEVICE)
    target = torch.randint(0, 100, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(images, target)
    report(began, loss)


if __name__ == "__main__":
    main()
