# SPDX-License-Identifier: Apache-2.0
"""Q-learning for a robot, which remembers best what surprised it: its memory is a tree of sums."""

import sys
import time

import numpy as np
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


class SumTree:
    """Each node holds the sum of the two below it; the lowest are the priorities of what is remembered."""

    def __init__(self, priorities: np.ndarray) -> None:
        self.leaves = len(priorities)
        self.sums = np.concatenate((np.zeros(self.leaves), priorities))
        for node in range(self.leaves - 1, 0, -1):
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]

    def find(self, mass: float) -> int:
        """The leaf where the priorities of all before it add up to this."""
        node = 1
        while node < self.leaves:
            node *= 2
            if mass >= self.sums[node]:
                mass -= self.sums[node]
                node += 1
        return node - self.leaves

    def set(self, leaf: int, priority: float) -> None:
        node = leaf + self.leaves
        self.sums[node] = priority
        while node > 1:
            node //= 2
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]

    def find_all(self, masses: np.ndarray) -> np.ndarray:
        if not MENDED:
            return np.array([self.find(mass) for mass in masses])
        nodes, masses = np.ones(len(masses), np.int64), masses.copy()
        while nodes[0] < self.leaves:
            nodes *= 2
            below = self.sums[nodes]
            beyond = masses >= below
            masses -= np.where(beyond, below, 0)
            nodes += beyond
        return nodes - self.leaves

    def set_all(self, leaves: np.ndarray, priorities: np.ndarray) -> None:
        if not MENDED:
            for leaf, priority in zip(leaves, priorities, strict=True):
                self.set(leaf, priority)
            return
        nodes = leaves + self.leaves
        self.sums[nodes] = priorities
        while nodes[0] > 1:
            nodes //= 2
            self.sums[nodes] = self.sums[2 * nodes] + self.sums[2 * nodes + 1]


class Memory:
    """States, what was done and what came of it lie on the GPU; the tree is on the host."""

    def __init__(self, size: int, sensors: int, moves: int) -> None:
        self.random = np.random.default_rng(0)
        self.tree = SumTree(self.random.random(size))
        self.before, self.after = torch.randn(2, size, sensors, device=DEVICE)
        self.moves = torch.randint(0, moves, (size, 1), device=DEVICE)
        self.rewards = torch.rand(size, 1, device=DEVICE)

    def draw(self, rows: int) -> tuple[np.ndarray, torch.Tensor, tuple[torch.Tensor, ...]]:
        leaves = self.tree.find_all((np.arange(rows) + self.random.random(rows)) / rows * self.tree.sums[1])
        chance = self.tree.sums[leaves + self.tree.leaves] / self.tree.sums[1]
        weights = torch.from_numpy((len(self.before) * chance) ** -0.4).float()[:, None].to(DEVICE)
        picked = torch.from_numpy(leaves).to(DEVICE)
        parts = (self.before, self.moves, self.rewards, self.after)
        return leaves, weights / weights.max(), tuple(part.index_select(0, picked) for part in parts)


def network(sensors: int, width: int, moves: int) -> nn.Module:
    layers = [nn.Linear(sensors, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, moves)).to(DEVICE)


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, size, sensors, width, moves = (2048, 2**17, 256, 1024, 64) if DEVICE == "cuda" else (6, 16, 4, 8, 3)
    memory, value, target = Memory(size, sensors, moves), *(network(sensors, width, moves) for _ in "ab")
    target.load_state_dict(value.state_dict())
    optimizer = torch.optim.Adam(value.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        leaves, weights, (before, chosen, rewards, after) = memory.draw(rows)
        with torch.no_grad():
            best = value(after).argmax(dim=1, keepdim=True)
            wanted = rewards + 0.99 * target(after).gather(1, best)
        found = value(before).gather(1, chosen)
        loss = (weights * F.smooth_l1_loss(found, wanted, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(value.parameters()), 0.005)
            surprise = (found - wanted).abs_().add_(1e-3).pow_(0.6)[:, 0]
        memory.tree.set_all(leaves, surprise.double().cpu().numpy())
    report(began, loss)


if __name__ == "__main__":
    main()
