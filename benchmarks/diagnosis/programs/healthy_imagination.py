# SPDX-License-Identifier: Apache-2.0
"""A robot learns in its imagination: a recurrent model of the world answers to what it would do."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (16, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class World(nn.Module):
    """What comes next, and what it is worth. It was learnt before and does not change here."""

    def __init__(self, width: int, moves: int) -> None:
        super().__init__()
        self.into, self.cell = nn.Linear(width + moves, width), nn.GRUCell(width, width)
        self.reward = nn.Sequential(nn.Linear(width, width // 2), nn.SiLU(), nn.Linear(width // 2, 1))

    def forward(self, state: torch.Tensor, move: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.cell(F.silu(self.into(torch.cat((state, move), dim=1))), state)
        return state, self.reward(state)[:, 0].float()


class Actor(nn.Module):
    def __init__(self, width: int, moves: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.head = nn.Linear(width, 2 * moves)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """A move, drawn so that gradients go through it."""
        mean, spread = self.head(self.layers(state)).chunk(2, dim=1)
        return torch.tanh(mean + F.softplus(spread) * torch.randn_like(mean))


def imagined(world: World, actor: Actor, state: torch.Tensor, far: int) -> torch.Tensor:
    """The mean of what is earned some moves ahead; each move waits for the state before it."""
    earned = torch.zeros(len(state), device=DEVICE)
    for ahead in range(far):
        with torch.autocast(DEVICE, torch.bfloat16):
            move = actor(state)
        state, reward = world(state, move.to(state.dtype))
        earned = earned + 0.97**ahead * reward
    return earned.mean()


def main() -> None:
    torch.manual_seed(0)
    rows, width, moves, far = (8192, 2048, 32, 12) if DEVICE == "cuda" else (4, 16, 3, 2)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    world = World(width, moves).to(DEVICE, dtype).requires_grad_(False)
    actor = Actor(width, moves).to(DEVICE)
    optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    starts = torch.randn(4, rows, width, device=DEVICE).tanh_().to(dtype)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = -imagined(world, actor, starts[step % 4], far)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 100.0, foreach=True)
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
