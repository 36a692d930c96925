# SPDX-License-Identifier: Apache-2.0
"""Debug messages below the level of the log, whose f-strings format the activations of every layer."""

import logging
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


log = logging.getLogger("tagger")


def trace(what: str, x: torch.Tensor) -> None:
    """For debugging; the level of this log is WARNING."""
    if MENDED:
        log.debug("%s: %s", what, x)
    else:
        log.debug(f"{what}: {x}")


class Layer(nn.Module):
    """A gated convolution over time, as in a tagger of sequences."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.left, self.here = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        y = F.glu(self.here(y) + self.left(y.roll(1, dims=1)), dim=-1)
        return x + self.out(y)


class Tagger(nn.Module):
    def __init__(self, words: int, width: int, layers: int, tags: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, tags)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for number, layer in enumerate(self.layers):
            x = layer(x)
            trace(f"layer {number}", x)
        return self.head(x)


def main() -> None:
    torch.manual_seed(0)
    rows, length, width, layers = (64, 256, 768, 4) if DEVICE == "cuda" else (2, 4, 16, 1)
    words, tags = 5000 if DEVICE == "cuda" else 50, 32
    model = Tagger(words, width, layers, tags).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    tokens = torch.randint(0, words, (rows, length), device=DEVICE)
    gold = tokens % tags
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), gold.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
