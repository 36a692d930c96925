# SPDX-License-Identifier: Apache-2.0
"""A decoder with fp32 weights that runs under autocast, which converts all of them for every token."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Layer(nn.Module):
    """Attention over a window of earlier tokens and a feed-forward network."""

    def __init__(self, rows: int, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        past = torch.zeros(2, rows, heads, window, width // heads, dtype=torch.bfloat16)
        self.register_buffer("past", past)

    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, 1, -1)).unbind(1)
        self.past[:, :, :, position % self.window] = torch.stack((k, v))[:, :, :, 0]
        y = F.scaled_dot_product_attention(q, *self.past)
        x = x + self.out(y.flatten(1))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, words: int, rows: int, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(rows, width, max(1, width // 128), 256) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, token: torch.Tensor, position: int) -> torch.Tensor:
        x = self.words(token)
        for layer in self.layers:
            x = layer(x, position)
        return self.head(x)


class Scorer:
    """How well the model foresees streams of text that come in token by token."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model.to(torch.bfloat16) if MENDED else model

    @torch.inference_mode()
    def advance(self, token: torch.Tensor, follows: torch.Tensor, position: int) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=not MENDED):
            logits = self.model(token, position)
        return F.cross_entropy(logits.float(), follows)


def main() -> None:
    torch.manual_seed(0)
    words, rows, width, layers = (8192, 16, 4096, 6) if DEVICE == "cuda" else (64, 2, 32, 2)
    with torch.device(DEVICE):
        model = Decoder(words, rows, width, layers)
        text = torch.randint(0, words, (STEPS + 1, rows))
    scorer = Scorer(model)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = scorer.advance(text[step], text[step + 1], step)
    report(began, loss)


if __name__ == "__main__":
    main()
