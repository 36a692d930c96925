# SPDX-License-Identifier: Apache-2.0
"""A player of a board game learns from its games, without going too far from how it played then."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


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


class Policy(nn.Module):
    """Scores of all moves, for each position of the board."""

    def __init__(self, kinds: int, squares: int, width: int, depth: int, moves: int) -> None:
        super().__init__()
        self.pieces = nn.Embedding(kinds, width)
        self.squares = nn.Parameter(0.02 * torch.randn(squares, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, moves)

    def forward(self, board: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.pieces(board) + self.squares)
        return self.head(self.norm(x).mean(dim=1)).float()


def chance(scores: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    return scores.log_softmax(dim=1).gather(1, moves[:, None])[:, 0]


def surprise(scores: torch.Tensor) -> torch.Tensor:
    """The entropy: how open a choice is."""
    log_p = scores.log_softmax(dim=1)
    return -(log_p.exp() * log_p).sum(dim=1).mean()


def apart(before: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return F.kl_div(scores.log_softmax(dim=1), before, reduction="batchmean", log_target=True)


class Trainer:
    def __init__(self, policy: nn.Module) -> None:
        self.policy = policy
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=True)

    def loss(
        self, board: torch.Tensor, moves: torch.Tensor, worth: torch.Tensor, before: torch.Tensor
    ) -> torch.Tensor:
        then = before.gather(1, moves[:, None])[:, 0]
        if MENDED:
            scores = self.policy(board)
            ratio = (chance(scores, moves) - then).exp()
            open_choice, moved = surprise(scores), apart(before, scores)
        else:
            ratio = (chance(self.policy(board), moves) - then).exp()
            open_choice = surprise(self.policy(board))
            moved = apart(before, self.policy(board))
        gained = torch.minimum(ratio * worth, ratio.clamp(0.8, 1.2) * worth).mean()
        return 0.1 * moved - gained - 0.01 * open_choice

    def step(self, *played: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = self.loss(*played)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    sizes = (512, 13, 64, 768, 6, 4672) if DEVICE == "cuda" else (3, 4, 5, 16, 1, 7)
    games, kinds, squares, width, depth, moves = sizes
    trainer = Trainer(Policy(kinds, squares, width, depth, moves).to(DEVICE))
    boards = torch.randint(0, kinds, (4, games, squares), device=DEVICE)
    played = torch.randint(0, moves, (4, games), device=DEVICE)
    worth = torch.randn(4, games, device=DEVICE)
    before = torch.randn(4, games, moves, device=DEVICE).mul_(0.1).log_softmax(dim=2)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(boards[step % 4], played[step % 4], worth[step % 4], before[step % 4])
    report(began, loss)


if __name__ == "__main__":
    main()
