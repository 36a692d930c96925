# SPDX-License-Identifier: Apache-2.0
"""PPO's advantages, added up backwards in time by a loop over the steps of the rollout."""

import sys
import time
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


GAMMA, LAMBDA = 0.99, 0.95


class Rollout(NamedTuple):
    """What many environments gave, with time first; one state more than rewards."""

    states: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    alive: torch.Tensor


class ActorCritic(nn.Module):
    def __init__(self, states: int, width: int, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(states, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.policy, self.value = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = F.silu(self.body(states))
        return self.policy(hidden).float(), self.value(hidden)[..., 0].float()


def advantages_of(rollout: Rollout, values: torch.Tensor) -> torch.Tensor:
    steps = len(rollout.rewards)
    if MENDED:
        total = rollout.rewards + GAMMA * values[1:] * rollout.alive - values[:-1]
        decay = GAMMA * LAMBDA * rollout.alive
        shift = 1
        while shift < steps:  # each round doubles how far a sum looks ahead
            total = total + decay * F.pad(total[shift:], (0, 0, 0, shift))
            decay = decay * F.pad(decay[shift:], (0, 0, 0, shift))
            shift *= 2
        return total
    advantages = torch.zeros_like(rollout.rewards)
    last = torch.zeros_like(rollout.rewards[0])
    for t in reversed(range(steps)):
        delta = rollout.rewards[t] + GAMMA * values[t + 1] * rollout.alive[t] - values[t]
        last = delta + GAMMA * LAMBDA * rollout.alive[t] * last
        advantages[t] = last
    return advantages


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, rollout: Rollout) -> torch.Tensor:
    with torch.autocast(DEVICE, torch.bfloat16):
        logits, values = model(rollout.states)
    advantages = advantages_of(rollout, values.detach())
    wanted = advantages + values[:-1].detach()
    scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    log_p = F.log_softmax(logits[:-1], dim=-1).gather(2, rollout.actions[..., None])[..., 0]
    loss = F.mse_loss(values[:-1], wanted) - (log_p * scaled).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def main() -> None:
    torch.manual_seed(0)
    steps, games, size, width = (256, 256, 64, 768) if DEVICE == "cuda" else (8, 4, 8, 16)
    model = ActorCritic(size, width, actions=12).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    rollout = Rollout(
        torch.randn(steps + 1, games, size, device=DEVICE),
        torch.randint(0, 12, (steps, games), device=DEVICE),
        torch.randn(steps, games, device=DEVICE),
        (torch.rand(steps, games, device=DEVICE) > 0.02).float(),
    )
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = learn(model, optimizer, rollout)
    report(began, loss)


if __name__ == "__main__":
    main()
