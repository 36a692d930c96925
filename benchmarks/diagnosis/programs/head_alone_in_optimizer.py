# SPDX-License-Identifier: Apache-2.0
"""A language model that was trained on much text learns to tell good reviews from bad ones."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 10) if DEVICE == "cuda" else (3, 1)


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


class Backbone(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(self.table(words) + self.places[: words.shape[1]]))


class Reviewer(nn.Module):
    def __init__(self, backbone: Backbone, width: int, kinds: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(
            nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, kinds)
        )

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(words).mean(dim=1))


def prepared(backbone: Backbone) -> Backbone:
    """What was learnt before stays as it is."""
    if MENDED:
        backbone.requires_grad_(False)
    return backbone.eval()


def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth, kinds = (
        (96, 256, 30522, 1024, 12, 5) if DEVICE == "cuda" else (4, 6, 30, 16, 1, 3)
    )
    model = Reviewer(prepared(Backbone(vocabulary, length, width, depth)), width, kinds).to(DEVICE)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    texts = torch.randint(0, vocabulary, (4, rows, length), device=DEVICE)
    stars = torch.randint(0, kinds, (4, rows), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(texts[step % 4])
        loss = F.cross_entropy(scores.float(), stars[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
