# SPDX-License-Identifier: Apache-2.0
"""PPO in an environment that lives on the GPU: tens of thousands of pendulums play at once."""

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


PLAYED, GAMMA, LAMBDA = 8, 0.99, 0.95


class Pendulums:
    """Swing them up: a state has cosine, sine and speed."""

    def __init__(self, count: int) -> None:
        self.angle = torch.rand(count, device=DEVICE) * 6.28
        self.speed = torch.zeros(count, device=DEVICE)
        self.pushes = torch.linspace(-2, 2, 9, device=DEVICE)

    def state(self) -> torch.Tensor:
        return torch.stack((self.angle.cos(), self.angle.sin(), self.speed), dim=-1)

    def play(self, action: torch.Tensor) -> torch.Tensor:
        self.speed = (self.speed + 0.05 * (15 * self.angle.sin() + 3 * self.pushes[action])).clamp(-8, 8)
        self.angle = self.angle + 0.05 * self.speed
        return self.angle.cos() - 0.01 * self.speed.square()


class ActorCritic(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.hidden = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.out = nn.Linear(width, 10)

    def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(DEVICE, torch.bfloat16):
            out = self.out(F.silu(self.hidden(self.first(state)))).float()
        return F.log_softmax(out[..., :9], dim=-1), out[..., 9]


class Played(NamedTuple):
    state: torch.Tensor
    action: torch.Tensor
    log_p: torch.Tensor
    gain: torch.Tensor
    wanted: torch.Tensor


@torch.no_grad()
def play(model: ActorCritic, game: Pendulums) -> Played:
    steps = []
    for _ in range(PLAYED):
        state = game.state()
        log_p, value = model(state)
        action = (log_p - torch.empty_like(log_p).exponential_().log()).argmax(dim=-1)
        chosen = log_p.gather(1, action[:, None])[:, 0]
        steps.append((state, action, chosen, game.play(action), value))
    states, actions, chosen, rewards, values = (torch.stack(each) for each in zip(*steps, strict=True))
    following = torch.cat((values[1:], model(game.state())[1][None]))
    gains = rewards + GAMMA * following - values
    for t in reversed(range(PLAYED - 1)):
        gains[t] += GAMMA * LAMBDA * gains[t + 1]
    return Played(*(each.flatten(0, 1) for each in (states, actions, chosen, gains, gains + values)))


def update(model: ActorCritic, optimizer: torch.optim.Optimizer, played: Played, parts: int) -> torch.Tensor:
    for state, action, old, gain, wanted in zip(*(each.chunk(parts) for each in played), strict=True):
        log_p, value = model(state)
        ratio = (log_p.gather(1, action[:, None])[:, 0] - old).exp()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        loss = policy + 0.5 * F.mse_loss(value, wanted) + 0.01 * (log_p.exp() * log_p).sum(-1).mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def main() -> None:
    torch.manual_seed(0)
    games, width = (65536, 512) if DEVICE == "cuda" else (16, 16)
    model, game = ActorCritic(width).to(DEVICE), Pendulums(games)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = update(model, optimizer, play(model, game), parts=4)
    report(began, loss)


if __name__ == "__main__":
    main()
