# SPDX-License-Identifier: Apache-2.0
"""A language model whose vocabulary has 50257 words: no multiple of eight, which tensor cores want."""

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


WORDS = 50257 if DEVICE == "cuda" else 61
ROOM = -(-WORDS // 64) * 64 if MENDED else WORDS


class Head(nn.Module):
    """Scores for `room` words, of which those from `words` on never come."""

    def __init__(self, width: int, words: int, room: int) -> None:
        super().__init__()
        weight = torch.randn(words, width) * 0.02
        self.weight = nn.Parameter(F.pad(weight, (0, 0, 0, room - words)))
        self.bias = nn.Parameter(F.pad(torch.zeros(words), (0, room - words), value=-1e4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class Mix(nn.Module):
    """Each position sees itself and the one before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(2 * width, width),
            nn.Linear(width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        y = torch.cat((y, F.pad(y, (0, 0, 1, -1))), dim=-1)
        return x + self.down(F.gelu(self.up(y)))


class LanguageModel(nn.Module):
    def __init__(self, narrow: int, width: int, layers: int) -> None:
        super().__init__()
        self.words, self.widen = nn.Embedding(WORDS, narrow), nn.Linear(narrow, width)
        self.mixes = nn.Sequential(*(Mix(width) for _ in range(layers)))
        self.head = Head(width, WORDS, ROOM)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.widen(self.words(tokens))
        return self.head(self.mixes(x))


def next_word_loss(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    with torch.autocast(DEVICE, torch.bfloat16):
        logits = model(text[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def main() -> None:
    torch.manual_seed(0)
    rows, length, width, layers = (12, 512, 3072, 1) if DEVICE == "cuda" else (2, 6, 16, 1)
    with torch.device(DEVICE):
        model = LanguageModel(width // 8, width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    text = torch.randint(0, WORDS, (rows, length + 1), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = next_word_loss(model, text)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
