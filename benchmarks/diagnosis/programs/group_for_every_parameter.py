# SPDX-License-Identifier: Apache-2.0
"""A vision transformer is fine-tuned with smaller steps for lower layers: a group for every parameter."""

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
    def __init__(self, size: int, patch: int, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).mT + self.places
        return self.head(self.norm(self.layers(x)).mean(dim=1))


def rate(name: str, depth: int) -> float:
    """Learning rate of a parameter: less by a quarter for each layer below the head."""
    if name.startswith("layers."):
        below = depth - int(name.split(".")[1])
    else:
        below = 0 if name.startswith(("norm", "head")) else depth + 1
    return 1e-3 * 0.75**below


def groups_of(model: Vision) -> list[dict]:
    depth = len(model.layers)
    groups = [
        {"params": [p], "lr": rate(name, depth), "weight_decay": 0.05 if p.dim() > 1 else 0.0}
        for name, p in model.named_parameters()
    ]
    return joined(groups) if MENDED else groups


def joined(groups: list[dict]) -> list[dict]:
    """One group for all parameters with the same settings."""
    found: dict[tuple[float, float], dict] = {}
    for group in groups:
        same = found.setdefault((group["lr"], group["weight_decay"]), {**group, "params": []})
        same["params"].extend(group["params"])
    return list(found.values())


def main() -> None:
    torch.manual_seed(0)
    rows, size, patch, width, heads, depth = (
        (32, 160, 16, 384, 6, 24) if DEVICE == "cuda" else (2, 8, 4, 16, 2, 3)
    )
    model = Vision(size, patch, width, heads, depth, 100).to(DEVICE)
    optimizer = torch.optim.AdamW(groups_of(model), fused=DEVICE == "cuda")
    images = torch.randn(rows, 3, size, size, device=DEVICE)
    target = torch.randint(0, 100, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(images)
        loss = F.cross_entropy(scores.float(), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
