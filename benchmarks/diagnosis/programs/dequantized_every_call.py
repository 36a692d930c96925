# SPDX-License-Identifier: Apache-2.0
"""Decoding with weights stored in eight bits, which become full weights again in every call."""

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


class QuantizedLinear(nn.Module):
    """One scale for each row of the weight."""

    def __init__(self, given: int, wanted: int) -> None:
        super().__init__()
        weight = torch.randn(wanted, given, device=DEVICE) / given**0.5
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("stored", (weight / scale).round().to(torch.int8))
        self.register_buffer("full", self.weight().to(torch.bfloat16) if MENDED else None)

    def weight(self) -> torch.Tensor:
        return self.stored.float() * self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.full is not None:
            return F.linear(x, self.full)
        return F.linear(x, self.weight().to(x.dtype))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, device=DEVICE, dtype=torch.bfloat16)
        self.gate, self.up = QuantizedLinear(width, 2 * width), QuantizedLinear(width, 2 * width)
        self.down = QuantizedLinear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Generator(nn.Module):
    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, device=DEVICE, dtype=torch.bfloat16)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, words, bias=False, device=DEVICE, dtype=torch.bfloat16)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.words(words)))


@torch.inference_mode()
def generate(model: nn.Module, words: torch.Tensor, number: int) -> torch.Tensor:
    for _ in range(number):
        logits = model(words)
        words = logits.argmax(dim=-1)
    return logits.float().logsumexp(dim=-1).mean()


def main() -> None:
    torch.manual_seed(0)
    vocabulary, width, depth, rows, number = (8192, 4096, 8, 64, 4) if DEVICE == "cuda" else (32, 16, 2, 2, 2)
    model = Generator(vocabulary, width, depth).eval()
    words = torch.randint(0, vocabulary, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        score = generate(model, words, number)
    report(began, score)


if __name__ == "__main__":
    main()
