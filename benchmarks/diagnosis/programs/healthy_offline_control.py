# SPDX-License-Identifier: Apache-2.0
"""A transformer learns to act from games that lie on the GPU, where its batches are cut out."""

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


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Games:
    """Games that were played before, each as rewards to come, states and actions over time."""

    def __init__(self, count: int, length: int, size: int, actions: int) -> None:
        rewards = torch.rand(count, length, device=DEVICE)
        self.to_come = rewards.flip(1).cumsum(1).flip(1)[..., None] / length
        self.states = torch.randn(count, length, size, device=DEVICE)
        self.actions = torch.randint(0, actions, (count, length), device=DEVICE)

    def cut(self, rows: int, moments: int) -> tuple[torch.Tensor, ...]:
        """Pieces of games, each from a random moment on."""
        count, length = self.actions.shape
        game = torch.randint(0, count, (rows, 1), device=DEVICE)
        start = torch.randint(0, length - moments + 1, (rows, 1), device=DEVICE)
        place = game * length + start + torch.arange(moments, device=DEVICE)
        return tuple(kind.flatten(0, 1)[place] for kind in (self.to_come, self.states, self.actions))


class Controller(nn.Module):
    def __init__(self, size: int, actions: int, moments: int, width: int, depth: int) -> None:
        super().__init__()
        self.wanted, self.state = nn.Linear(1, width), nn.Linear(size, width)
        self.action = nn.Embedding(actions, width)
        self.places = nn.Parameter(0.02 * torch.randn(moments, 1, width))
        self.blocks = nn.Sequential(*(Block(width, width // 64 or 1) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, actions)

    def forward(self, to_come: torch.Tensor, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Scores of the action at each moment, from all that came before it."""
        words = torch.stack((self.wanted(to_come), self.state(states), self.action(actions)), dim=2)
        x = self.blocks((words + self.places).flatten(1, 2))
        return self.head(self.norm(x[:, 1::3]))


def main() -> None:
    torch.manual_seed(0)
    games, length, size, actions, rows, moments, width, depth = (
        (2000, 500, 64, 18, 128, 128, 768, 6) if DEVICE == "cuda" else (4, 9, 3, 4, 2, 4, 16, 2)
    )
    memory = Games(games, length, size, actions)
    model = Controller(size, actions, moments, width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        to_come, states, done = memory.cut(rows, moments)
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(to_come, states, done)
        loss = F.cross_entropy(scores.float().flatten(0, 1), done.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
