# SPDX-License-Identifier: Apache-2.0
"""Tens of thousands of carts balance a pole at once, steered by a large network, all on the GPU."""

import math
import sys
import time

import torch
from torch import nn

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Carts:
    """Place, speed, angle and turn of each cart and its pole. Those that fall start anew."""

    def __init__(self, carts: int, dt: float) -> None:
        self.dt = dt
        self.state = 0.1 * torch.randn(carts, 4, device=DEVICE)
        self.age = torch.zeros(carts, device=DEVICE)

    def step(self, force: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One after the force. Returns the reward and who fell."""
        speed, angle, turn = self.state[:, 1:].unbind(dim=1)
        sine, cosine = angle.sin(), angle.cos()
        pushed = (force + 0.05 * turn.square() * sine) / 1.1
        swings = (9.8 * sine - cosine * pushed) / (0.5 * (4 / 3 - 0.1 * cosine.square() / 1.1))
        moves = pushed - 0.05 * swings * cosine / 1.1
        new = torch.stack((speed, moves, turn, swings), dim=1)
        self.state = self.state.add(new, alpha=self.dt)
        fell = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > math.pi / 15) | (self.age > 500)
        reward = 1 - fell.float() - 0.01 * self.state[:, 0].square()
        fresh = 0.1 * torch.rand_like(self.state) - 0.05
        self.state = torch.where(fell.unsqueeze(1), fresh, self.state)
        self.age = torch.where(fell, 0, self.age + 1)
        return reward, fell


class Policy(nn.Module):
    """Sees the last few states of a cart, and says where to push and how good things look."""

    def __init__(self, given: int, width: int, depth: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(given, width), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.layers, self.heads = nn.Sequential(*layers), nn.Linear(width, 8)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return self.heads(self.layers(seen)).float()


class Rollout:
    """What the carts have done, by time."""

    def __init__(self, length: int, carts: int) -> None:
        self.rewards = torch.zeros(length, carts, device=DEVICE)
        self.values = torch.zeros(length, carts, device=DEVICE)
        self.ends = torch.zeros(length, carts, dtype=torch.bool, device=DEVICE)

    def fill(self, carts: Carts, policy: Policy, seen: torch.Tensor) -> torch.Tensor:
        """Play on from what the carts have seen last. Returns what they see at the end."""
        for now in range(len(self.rewards)):
            mean, spread, self.values[now] = policy(seen.to(torch.bfloat16))[:, :3].unbind(dim=1)
            force = 10 * torch.tanh(mean + 0.1 * spread.exp() * torch.randn_like(mean))
            self.rewards[now], self.ends[now] = carts.step(force)
            seen = torch.cat((seen[:, 4:], carts.state), dim=1)
        return seen


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    many, length, last, width, depth = (32768, 8, 8, 4096, 3) if DEVICE == "cuda" else (6, 3, 2, 16, 1)
    carts, policy = Carts(many, 0.02), Policy(4 * last, width, depth).to(DEVICE, torch.bfloat16)
    rollout, seen = Rollout(length, many), torch.zeros(many, 4 * last, device=DEVICE)
    total, falls = torch.zeros((), device=DEVICE), torch.zeros((), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        seen = rollout.fill(carts, policy, seen)
        total += rollout.rewards.mean()
        falls += rollout.ends.float().mean()
    report(began, total / STEPS + falls + rollout.values.mean())


if __name__ == "__main__":
    main()
