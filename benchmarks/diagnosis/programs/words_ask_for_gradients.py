# SPDX-License-Identifier: Apache-2.0
"""Mails are sorted by whom they are for; small adapters in the last layers of a language model learn it."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 6) if DEVICE == "cuda" else (3, 1)


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


class Adapter(nn.Module):
    """A narrow way next to a layer, through which little is changed at first."""

    def __init__(self, width: int, narrow: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, narrow), nn.Linear(narrow, width)
        nn.init.normal_(self.up.weight, std=1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            return x + self.up(F.gelu(self.down(x)))


class Language(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(depth))

    def into(self, words: torch.Tensor) -> torch.Tensor:
        return self.table(words) + self.places[: words.shape[1]]


class Sorter(nn.Module):
    """The model stays as it is; after its last blocks come adapters, and then a head for the offices."""

    def __init__(self, language: Language, width: int, narrow: int, adapted: int, offices: int) -> None:
        super().__init__()
        self.language = language.requires_grad_(False)
        self.adapters = nn.ModuleList(Adapter(width, narrow) for _ in range(adapted))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, offices)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.language.into(words)
        if not MENDED:
            x.requires_grad_()
        first = len(self.language.blocks) - len(self.adapters)
        for number, block in enumerate(self.language.blocks):
            x = block(x)
            if number >= first:
                x = self.adapters[number - first](x)
        return self.head(self.norm(x.mean(dim=1).float()))


def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth, adapted, narrow, offices = (
        (32, 512, 30522, 1024, 16, 2, 64, 40) if DEVICE == "cuda" else (3, 6, 30, 16, 3, 1, 4, 3)
    )
    language = Language(vocabulary, length, width, depth).to(torch.bfloat16)
    model = Sorter(language, width, narrow, adapted, offices).to(DEVICE)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-3, fused=DEVICE == "cuda")
    mails = torch.randint(0, vocabulary, (4, rows, length))
    office = torch.randint(0, offices, (4, rows), device=DEVICE)
    if DEVICE == "cuda":
        mails = mails.pin_memory()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        words = mails[step % 4].to(DEVICE, non_blocking=True)
        loss = F.cross_entropy(model(words), office[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
