# SPDX-License-Identifier: Apache-2.0
"""Thousands of robots plan a few moves ahead, by gradients through a model of their world, and move."""

import sys
import time
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 8) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class World(nn.Module):
    """A learned model: how the state changes by a move. It is not trained any more."""

    def __init__(self, sensors: int, moves: int, width: int, depth: int) -> None:
        super().__init__()
        sizes = [sensors + moves, *depth * [width]]
        self.layers = nn.ModuleList(nn.Linear(one, two) for one, two in pairwise(sizes))
        self.head = nn.Linear(width, sensors)

    def forward(self, state: torch.Tensor, move: torch.Tensor) -> torch.Tensor:
        x = torch.cat((state, move), dim=1).to(self.head.weight.dtype)
        for layer in self.layers:
            x = F.relu(layer(x))
        return state + 0.1 * self.head(x).float()


class Planner:
    """Each plan begins with what is left of the one before, and is made better by a few steps downhill."""

    def __init__(self, world: World, goal: torch.Tensor, robots: int, ahead: int, moves: int) -> None:
        self.world, self.goal = world, goal
        self.plan = torch.zeros(ahead, robots, moves, device=DEVICE)

    def cost(self, state: torch.Tensor, plan: torch.Tensor) -> torch.Tensor:
        cost = 0.01 * plan.square().sum()
        for move in plan.unbind():
            state = self.world(state, move)
            cost = cost + (state - self.goal).square().sum()
        return cost

    def better(self, state: torch.Tensor, tries: int) -> torch.Tensor:
        plan = self.plan.detach().clone().requires_grad_()
        optimizer = torch.optim.Adam([plan], lr=0.05, fused=DEVICE == "cuda")
        for _ in range(tries):
            cost = self.cost(state, plan)
            optimizer.zero_grad()
            cost.backward(retain_graph=not MENDED)
            optimizer.step()
        return plan

    def move(self, state: torch.Tensor, tries: int, most: int) -> torch.Tensor:
        """Where the robots are after the first moves of their plans."""
        plan = self.better(state, tries)
        done = plan.detach() if MENDED else plan
        for move in done[:most].unbind():
            state = self.world(state, move)
        self.plan = torch.cat((plan[most:], plan[-most:]))
        return state


def main() -> None:
    torch.manual_seed(0)
    robots, sensors, moves, width, depth, ahead = (
        (8192, 128, 32, 2048, 3, 10) if DEVICE == "cuda" else (5, 4, 2, 8, 2, 3)
    )
    tries, most = (3, 2) if DEVICE == "cuda" else (2, 1)
    world = World(sensors, moves, width, depth).to(DEVICE, torch.bfloat16).requires_grad_(False)
    state, goal = torch.randn(2, robots, sensors, device=DEVICE)
    planner = Planner(world, goal, robots, ahead, moves)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        state = planner.move(state, tries, most)
    report(began, (state - goal).square().mean())


if __name__ == "__main__":
    main()
