# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts that brings words to experts and back by products with a mask of ones and zeros."""

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


class Experts(nn.Module):
    """One expert for each word, with a fixed room; words that find no room pass by."""

    def __init__(self, width: int, count: int, room: int) -> None:
        super().__init__()
        self.count, self.room = count, room
        self.gate = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, width, 4 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(count, 4 * width, width) * (4 * width) ** -0.5)
        self.register_buffer("numbers", torch.arange(count))
        self.register_buffer("places", torch.arange(room))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, expert = self.gate(x).float().softmax(dim=-1).max(dim=-1)
        chosen = (expert[:, None] == self.numbers).int()
        place = (chosen.cumsum(dim=0) * chosen).sum(dim=-1) - 1
        through = self.by_index if MENDED else self.by_mask
        return x + through(x, expert, place) * weight[:, None].to(x.dtype)

    def by_mask(self, x: torch.Tensor, expert: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        mine = expert[:, None, None] == self.numbers[:, None]
        mask = (mine & (place[:, None, None] == self.places)).to(x.dtype)
        sent = torch.einsum("tec,tw->ecw", mask, x)
        return torch.einsum("tec,ecw->tw", mask, self.work(sent))

    def by_index(self, x: torch.Tensor, expert: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        slots = self.count * self.room
        slot = torch.where(place < self.room, expert * self.room + place, slots)
        sent = x.new_zeros(slots + 1, x.shape[1]).index_add(0, slot, x)[:-1]
        done = self.work(sent.unflatten(0, (self.count, self.room))).flatten(0, 1)
        return F.pad(done, (0, 0, 0, 1)).index_select(0, slot)

    def work(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ self.up.to(x.dtype)) @ self.down.to(x.dtype)


class Mixture(nn.Module):
    def __init__(self, words: int, width: int, depth: int, count: int, room: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Experts(width, count, room) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens).to(torch.bfloat16)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = layer(norm(x).to(x.dtype))
        return self.head(x)


def main() -> None:
    torch.manual_seed(0)
    tokens, words, width, depth, count = (8192, 4096, 1024, 3, 16) if DEVICE == "cuda" else (24, 20, 8, 2, 4)
    model = Mixture(words, width, depth, count, 3 * tokens // (2 * count)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    text = torch.randint(0, words, (tokens + 1,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(text[:-1])
        loss = F.cross_entropy(scores.float(), text[1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
