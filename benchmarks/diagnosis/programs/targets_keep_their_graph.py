# SPDX-License-Identifier: Apache-2.0
"""How good would a new way to steer a heating be? Two critics learn it from what others have done."""

import copy
import sys
import time
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (36, 8) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Transitions(NamedTuple):
    state: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    after: torch.Tensor


class ReplayBuffer:
    def __init__(self, size: int, state: int, action: int) -> None:
        self.kept = Transitions(
            torch.randn(size, state, device=DEVICE),
            torch.rand(size, action, device=DEVICE) * 2 - 1,
            torch.rand(size, 1, device=DEVICE),
            torch.randn(size, state, device=DEVICE),
        )

    def sample(self, rows: int) -> Transitions:
        picked = torch.randint(len(self.kept.state), (rows,), device=DEVICE)
        return Transitions(*(part.index_select(0, picked) for part in self.kept))


def mlp(given: int, hidden: int, layers: int, out: int) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Linear(given, hidden), nn.ReLU()]
    for _ in range(layers - 1):
        parts += [nn.Linear(hidden, hidden), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(hidden, out))


class Policy(nn.Module):
    """That shall be judged: what it does in each state, with a little noise."""

    def __init__(self, state: int, action: int, hidden: int) -> None:
        super().__init__()
        self.net = mlp(state, hidden, 6, action)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        action = self.net(state).tanh()
        return (action + 0.1 * torch.randn_like(action).clamp(-2, 2)).clamp(-1, 1)


class TwinCritic(nn.Module):
    def __init__(self, state: int, action: int, hidden: int) -> None:
        super().__init__()
        self.one, self.two = (mlp(state + action, hidden, 3, 1) for _ in range(2))

    def forward(self, state: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.cat([state, action], dim=1)
        return self.one(both), self.two(both)


class Judge:
    def __init__(self, policy: Policy, critic: TwinCritic, discount: float, tau: float) -> None:
        self.policy, self.critic, self.target = policy, critic, copy.deepcopy(critic)
        self.discount, self.tau = discount, tau
        self.optimizer = torch.optim.Adam(critic.parameters(), lr=3e-4, fused=DEVICE == "cuda")

    def value_after(self, batch: Transitions) -> torch.Tensor:
        """Of the two critics the one that promises less is believed."""
        return torch.min(*self.target(batch.after, self.policy(batch.after)))

    def wanted(self, batch: Transitions) -> torch.Tensor:
        with torch.set_grad_enabled(not MENDED):
            return batch.reward + self.discount * self.value_after(batch).float()

    def critic_loss(self, batch: Transitions) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            one, two = self.critic(batch.state, batch.action)
            wanted = self.wanted(batch)
        return F.mse_loss(one.float(), wanted) + F.mse_loss(two.float(), wanted)

    def update(self, batch: Transitions) -> torch.Tensor:
        loss = self.critic_loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_([*self.target.parameters()], [*self.critic.parameters()], self.tau)
        return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    rows, size, state, action, hidden = (
        (32768, 400_000, 96, 12, 2048) if DEVICE == "cuda" else (6, 30, 4, 2, 16)
    )
    policy, critic = Policy(state, action, hidden).to(DEVICE), TwinCritic(state, action, hidden).to(DEVICE)
    judge, buffer = Judge(policy, critic, discount=0.99, tau=0.005), ReplayBuffer(size, state, action)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = judge.update(buffer.sample(rows))
    report(began, loss)


if __name__ == "__main__":
    main()
