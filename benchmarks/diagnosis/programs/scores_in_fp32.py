# SPDX-License-Identifier: Apache-2.0
"""Attention whose scores are computed in fp32, because queries and keys are converted first."""

import sys
import time

import torch
from torch import nn

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


def attention_weights(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    if MENDED:
        scores = q @ k.transpose(-2, -1)
    else:
        with torch.autocast(DEVICE, enabled=False):
            scores = q.float() @ k.float().transpose(-2, -1)
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)


class Attention(nn.Module):
    """Also keeps how much attention each position gets."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.received = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = attention_weights(q * self.scale, k)
        self.received = weights.detach().mean(dim=-2)
        return self.out((weights @ v).transpose(1, 2).flatten(-2))


class Encoder(nn.Module):
    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.layers = nn.ModuleList(Attention(width, heads) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return x


def main() -> None:
    torch.manual_seed(0)
    width, length = (2048, 2048) if DEVICE == "cuda" else (32, 16)
    model = Encoder(width, 8, 4).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    x = torch.randn(2, length, width, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(x).float().square().mean()

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
