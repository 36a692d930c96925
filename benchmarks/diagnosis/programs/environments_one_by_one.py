# SPDX-License-Identifier: Apache-2.0
"""An actor-critic whose pendulums are Python objects that move one after the other."""

import sys
import time

import numpy as np
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


def moved(state: np.ndarray, push: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Angle and speed of pendulums after a push, and the reward for being upright."""
    angle, speed = state[..., 0], state[..., 1]
    reward = -(np.square(angle) + 0.1 * np.square(speed) + 0.001 * np.square(push))
    speed = np.clip(speed + 0.05 * (15.0 * np.sin(angle) + 3.0 * push), -8.0, 8.0)
    angle = np.mod(angle + 0.05 * speed + np.pi, 2 * np.pi) - np.pi
    return np.stack((angle, speed), axis=-1), reward


class Pendulum:
    def __init__(self, state: np.ndarray) -> None:
        self.state = state

    def step(self, push: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.state, reward = moved(self.state, push)
        return self.state, reward


class Environments:
    def __init__(self, count: int) -> None:
        start = np.random.default_rng(0).uniform(-1, 1, (count, 2))
        self.each = [Pendulum(state) for state in start]
        self.all = Pendulum(start)

    def observe(self) -> np.ndarray:
        return self.all.state if MENDED else np.stack([one.state for one in self.each])

    def step(self, pushes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if MENDED:
            return self.all.step(pushes)
        both = [one.step(push) for one, push in zip(self.each, pushes, strict=True)]
        states, rewards = zip(*both, strict=True)
        return np.stack(states), np.stack(rewards)


class ActorCritic(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.mean, self.value = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.body(seen)
        return self.mean(y)[..., 0], self.value(y)[..., 0]


def upload(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float32)).to(DEVICE)


def play(model: ActorCritic, world: Environments, moments: int) -> tuple[torch.Tensor, ...]:
    """What was seen, done and earned, each (moments, environments)."""
    seen, done, earned = [], [], []
    now = upload(world.observe())
    for _ in range(moments):
        with torch.no_grad():
            mean, _value = model(now)
        pushes = mean + 0.5 * torch.randn_like(mean)
        states, rewards = world.step(pushes.cpu().numpy())
        seen.append(now)
        done.append(pushes)
        earned.append(upload(rewards))
        now = upload(states)
    return torch.stack(seen), torch.stack(done), torch.stack(earned)


def learn(model: ActorCritic, seen: torch.Tensor, done: torch.Tensor, earned: torch.Tensor) -> torch.Tensor:
    """Advantage of one step, with the value of the next state from the same network."""
    mean, value = model(seen)
    target = 0.1 * earned[:-1] + 0.95 * value[1:].detach()
    advantage = (target - value[:-1]).detach()
    log_p = -2.0 * (done[:-1] - mean[:-1]).square()
    return F.mse_loss(value[:-1], target) - (log_p * advantage).mean()


def main() -> None:
    torch.manual_seed(0)
    count, moments, width = (512, 8, 1024) if DEVICE == "cuda" else (4, 3, 8)
    model, world = ActorCritic(width).to(DEVICE), Environments(count)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = learn(model, *play(model, world, moments))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
