# SPDX-License-Identifier: Apache-2.0
"""Q-learning whose replay memory holds each transition as tensors of its own."""

import random
import sys
import time
from collections import deque
from typing import NamedTuple

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


class Transition(NamedTuple):
    state: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    after: torch.Tensor


def played(count: int, features: int, actions: int) -> Transition:
    """What an agent has seen, a row for each move."""
    states = torch.randn(count + 1, features, device=DEVICE)
    chosen = torch.randint(0, actions, (count, 1), device=DEVICE)
    return Transition(states[:-1], chosen, torch.randn(count, 1, device=DEVICE), states[1:])


class Memory:
    def __init__(self, seen: Transition) -> None:
        self.whole = seen
        self.single = deque(Transition(*row) for row in zip(*(each.split(1) for each in seen), strict=True))

    def sample(self, count: int) -> Transition:
        if MENDED:
            rows = torch.randint(0, len(self.single), (count,), device=DEVICE)
            return Transition(*(column[rows] for column in self.whole))
        rows = random.sample(self.single, count)
        return Transition(*(torch.cat(column) for column in zip(*rows, strict=True)))


class QNet(nn.Module):
    def __init__(self, features: int, width: int, actions: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.value, self.advantage = nn.Linear(width, 1), nn.Linear(width, actions)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        y = self.trunk(state)
        advantage = self.advantage(y)
        return self.value(y) + advantage - advantage.mean(dim=-1, keepdim=True)


def learned(net: QNet, target: QNet, batch: Transition) -> torch.Tensor:
    with torch.no_grad():
        best = net(batch.after).argmax(dim=-1, keepdim=True)
        wanted = batch.reward + 0.99 * target(batch.after).gather(1, best)
    return F.smooth_l1_loss(net(batch.state).gather(1, batch.action), wanted)


def main() -> None:
    torch.manual_seed(0)
    random.seed(0)
    kept, features, width, actions, rows = (
        (20000, 128, 1024, 18, 2048) if DEVICE == "cuda" else (50, 8, 8, 3, 4)
    )
    net, target = (QNet(features, width, actions).to(DEVICE) for _ in range(2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    memory = Memory(played(kept, features, actions))
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = learned(net, target, memory.sample(rows))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
