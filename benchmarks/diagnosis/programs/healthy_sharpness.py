# SPDX-License-Identifier: Apache-2.0
"""A vision transformer learns with sharpness-aware minimisation, which takes two passes a step."""

import sys
import time

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
    def __init__(self, patch: int, places: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn(places, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.into(x).flatten(2).mT + self.places)
        return self.head(self.norm(x).mean(dim=1))


class Sharpness:
    """Moves the weights uphill for the second pass, and back before the optimizer steps."""

    def __init__(self, model: nn.Module, radius: float) -> None:
        self.weights, self.radius = list(model.parameters()), radius
        self.before = [torch.empty_like(weight) for weight in self.weights]

    @torch.no_grad()
    def climb(self) -> None:
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_copy_(self.before, self.weights)
        torch._foreach_mul_(gradients, self.radius / (norm + 1e-12))
        torch._foreach_add_(self.weights, gradients)

    @torch.no_grad()
    def back(self) -> None:
        torch._foreach_copy_(self.weights, self.before)


def main() -> None:
    torch.manual_seed(0)
    rows, side, patch, width, depth = (128, 224, 16, 768, 8) if DEVICE == "cuda" else (2, 16, 8, 16, 2)
    model = Vision(patch, (side // patch) ** 2, width, max(1, width // 64), depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    sharpness = Sharpness(model, radius=0.05)
    images = torch.randn(2, rows, 3, side, side, device=DEVICE)
    shown = torch.randint(1000, (2, rows), device=DEVICE)

    def gradients_of(step: int) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(images[step % 2])
        loss = F.cross_entropy(scores.float(), shown[step % 2], label_smoothing=0.1)
        loss.backward()
        return loss

    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = gradients_of(step)
        sharpness.climb()
        gradients_of(step)
        sharpness.back()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
