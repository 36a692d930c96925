# SPDX-License-Identifier: Apache-2.0
"""Faults in parts are found by what every layer of a vision transformer sees, kept by hooks."""

import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (16, 4) if DEVICE == "cuda" else (3, 1)


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


class Vision(nn.Module):
    def __init__(self, size: int, patch: int, width: int, depth: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(depth))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.cut(pictures).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return x


class FeatureExtractor:
    """Keeps what the layers of a model give, by hooks."""

    def __init__(self, model: nn.Module, layers: list[str]) -> None:
        self.model, self.features = model, {}
        modules = dict(model.named_modules())
        for name in layers:
            modules[name].register_forward_hook(self.keep(name))

    def keep(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            seen = output.detach().float()
            self.features[name] = seen.mean(dim=1).cpu() if MENDED else seen.cpu()

        return hook

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """One vector for each picture: the mean over the patches, of all layers together."""
        self.features.clear()
        self.model(pictures)
        if MENDED:
            return torch.cat(list(self.features.values()), dim=1)
        return torch.cat([seen.mean(dim=1) for seen in self.features.values()], dim=1)


class Normal:
    """Mean and spread of the features of good parts."""

    def __init__(self, features: torch.Tensor) -> None:
        self.mean, self.spread = features.mean(dim=0), features.std(dim=0) + 1e-3

    def distance(self, features: torch.Tensor) -> torch.Tensor:
        return ((features - self.mean) / self.spread).square().mean(dim=1).sqrt()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, size, patch, width, depth = (32, 224, 16, 768, 12) if DEVICE == "cuda" else (4, 8, 4, 16, 2)
    model = Vision(size, patch, width, depth).to(DEVICE, torch.bfloat16).eval()
    layers = [f"blocks.{number}" for number in range(depth // 4, depth)]
    extract = FeatureExtractor(model, layers)
    parts = torch.randn(4, rows, 3, size, size, device=DEVICE, dtype=torch.bfloat16)
    normal, distances = Normal(extract(parts[0])), []
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        distances.append(normal.distance(extract(parts[step % 4])))
    report(began, torch.stack(distances).mean())


if __name__ == "__main__":
    main()
