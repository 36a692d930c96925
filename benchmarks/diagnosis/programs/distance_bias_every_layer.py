# SPDX-License-Identifier: Apache-2.0
"""A language model without positions, whose bias by distance is made anew for every layer."""

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


class Attention(nn.Module):
    """Each head looks less at words that are farther away, by a slope of its own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), bias)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Language(nn.Module):
    def __init__(self, words: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads))

    def bias(self, length: int) -> torch.Tensor:
        places = torch.arange(length, device=self.slopes.device)
        distance = places[:, None] - places
        bias = -self.slopes.float()[:, None, None] * distance
        bias = bias.masked_fill(distance < 0, float("-inf"))
        return bias.to(self.table.weight.dtype)[None]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for number, layer in enumerate(self.layers):
            if number == 0 or not MENDED:
                bias = self.bias(tokens.shape[1])
            x = layer(x, bias)
        return self.head(self.norm(x))


@torch.inference_mode()
def main() -> None:
    """How surprising a few long texts are, one after the other."""
    torch.manual_seed(0)
    texts, length, words, width, heads, depth = (
        (4, 2048, 8192, 2048, 32, 8) if DEVICE == "cuda" else (2, 8, 40, 16, 4, 2)
    )
    model = Language(words, width, heads, depth).to(DEVICE, torch.bfloat16)
    tokens = torch.randint(0, words, (texts, 1, length + 1), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        surprise = [F.cross_entropy(model(text[:, :-1])[0].float(), text[0, 1:]) for text in tokens]
    report(began, torch.stack(surprise).mean())


if __name__ == "__main__":
    main()
