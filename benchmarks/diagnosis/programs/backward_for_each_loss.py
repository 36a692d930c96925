# SPDX-License-Identifier: Apache-2.0
"""A model of molecules with eight targets goes back through all of its layers for each of them."""

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
    """Atoms look at each other, less at those that are far away."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Molecules(nn.Module):
    def __init__(self, width: int, heads: int, depth: int, targets: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(100, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(targets))

    def forward(self, kinds: torch.Tensor, places: torch.Tensor) -> list[torch.Tensor]:
        near = -torch.cdist(places, places)[:, None].to(torch.bfloat16)
        x = self.kinds(kinds)
        for layer in self.layers:
            x = layer(x, near)
        whole = x.mean(dim=1)
        return [head(whole)[:, 0] for head in self.heads]


def backward(losses: list[torch.Tensor]) -> torch.Tensor:
    """Adds the gradients of all losses up."""
    if MENDED:
        torch.stack(losses).sum().backward()
    else:
        for loss in losses:
            loss.backward(retain_graph=True)
    return torch.stack([loss.detach() for loss in losses]).mean()


def main() -> None:
    torch.manual_seed(0)
    rows, atoms, width, depth, targets = (256, 64, 512, 6, 8) if DEVICE == "cuda" else (2, 8, 16, 2, 3)
    model = Molecules(width, width // 16, depth, targets).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    kinds = torch.randint(0, 100, (rows, atoms), device=DEVICE)
    places, measured = torch.randn(rows, atoms, 3, device=DEVICE), torch.randn(targets, rows, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            guesses = model(kinds, places)
        losses = [F.mse_loss(guess.float(), truth) for guess, truth in zip(guesses, measured, strict=True)]
        loss = backward(losses)
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
