# SPDX-License-Identifier: Apache-2.0
"""A model learns to play from records of games. They are text, which is read while the GPU is at work."""

import random
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)
PIN = DEVICE == "cuda"

# ---- settings ----
GAMES, MOVES = (128, 128) if DEVICE == "cuda" else (3, 6)
WIDTH, DEPTH = (1024, 8) if DEVICE == "cuda" else (16, 1)
FILES, RANKS = "abcdefgh", "12345678"


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


# ---- records and what stands for their moves ----
SQUARES = [file + rank for file in FILES for rank in RANKS]
VOCABULARY = {one + two: number for number, (one, two) in enumerate((a, b) for a in SQUARES for b in SQUARES)}
PROMOTED = {"q": 0, "r": 1, "b": 2, "n": 3}
KINDS = len(VOCABULARY) + len(PROMOTED)


def record(rng: random.Random) -> str:
    """As programs that play write it: two squares for each move, and what a pawn turns into."""
    moves = ["".join(rng.choices(SQUARES, k=2)) for _ in range(MOVES + 1)]
    moves[-1] += rng.choice("qrbn")
    return " ".join(moves)


def read(text: str) -> list[int]:
    kinds = []
    for move in text.split():
        if len(move) == 4:
            kinds.append(VOCABULARY[move])
        else:
            kinds.append(len(VOCABULARY) + PROMOTED[move[4]])
    return kinds


def batch(records: list[str], rng: random.Random) -> torch.Tensor:
    games = torch.tensor([read(text) for text in rng.sample(records, GAMES)], pin_memory=PIN)
    return games.to(DEVICE, non_blocking=True)


# ---- the player ----
class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = max(1, WIDTH // 64)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Player(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(KINDS, WIDTH), nn.Parameter(0.02 * torch.randn(MOVES, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, KINDS)

    def forward(self, moves: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.table(moves) + self.places)))


def main() -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    records = [record(rng) for _ in range(4 * GAMES)]
    player = Player().to(DEVICE)
    optimizer = torch.optim.AdamW(player.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    mean = torch.zeros((), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        moves = batch(records, rng)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(player(moves[:, :-1]).flatten(0, 1), moves[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean.lerp_(loss.detach(), 0.1)
    report(began, mean)


if __name__ == "__main__":
    main()
