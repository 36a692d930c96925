# SPDX-License-Identifier: Apache-2.0
"""Tens of thousands of drones learn to come to their goals; they fly on the GPU, which learns from it."""

import sys
import time

import torch
from torch import nn

MENDED = "--mended" in sys.argv  # nothing to mend
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (16, 4) if DEVICE == "cuda" else (3, 1)
GAMMA, LAMBDA, CLIP, DT = 0.98, 0.95, 0.2, 0.05


class Drones:
    """Place, speed and goal of each; its push and the wind change the speed."""

    def __init__(self, number: int) -> None:
        self.place, self.speed = torch.randn(2, number, 3, device=DEVICE)
        self.goal, self.wind = torch.randn(2, number, 3, device=DEVICE)
        self.push = torch.zeros(number, 3, device=DEVICE)

    def senses(self) -> torch.Tensor:
        apart = self.goal - self.place
        far = apart.norm(dim=1, keepdim=True)
        return torch.cat((apart, self.speed, self.place, self.wind, self.push, far), dim=1)

    def fly(self, push: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.push = push.clamp(-1, 1)
        self.speed = self.speed + DT * (4 * self.push - 0.5 * (self.speed - self.wind))
        self.place = self.place + DT * self.speed
        far = (self.goal - self.place).norm(dim=1)
        there = far < 0.1
        self.goal = torch.where(there[:, None], torch.randn_like(self.goal), self.goal)
        return there.float() - 0.1 * far, there


class ActorCritic(nn.Module):
    def __init__(self, senses: int, width: int, moves: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(senses, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
        )
        self.moves, self.head = moves, nn.Linear(width, 8)  # of which not all are used: rows of 16 bytes
        self.spread = nn.Parameter(torch.zeros(moves))

    def forward(self, senses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(DEVICE, torch.bfloat16):
            out = self.head(self.body(senses)).float()
        return out[..., : self.moves], out[..., -1]

    def chance(self, mean: torch.Tensor, move: torch.Tensor) -> torch.Tensor:
        return (-0.5 * ((move - mean) / self.spread.exp()).square() - self.spread).sum(dim=-1)


class Rollout:
    def __init__(self, ticks: int, drones: int, senses: int, moves: int) -> None:
        self.senses = torch.empty(ticks, drones, senses, device=DEVICE)
        self.moves = torch.empty(ticks, drones, moves, device=DEVICE)
        self.chance, self.rewards, self.goes_on = torch.empty(3, ticks, drones, device=DEVICE)
        self.values = torch.empty(ticks + 1, drones, device=DEVICE)

    @torch.no_grad()
    def fill(self, drones: Drones, net: ActorCritic) -> None:
        for tick in range(len(self.senses)):
            self.senses[tick] = senses = drones.senses()
            mean, self.values[tick] = net(senses)
            self.moves[tick] = move = mean + net.spread.exp() * torch.randn_like(mean)
            self.chance[tick] = net.chance(mean, move)
            self.rewards[tick], there = drones.fly(move)
            self.goes_on[tick] = 1 - there.float()
        self.values[-1] = net(drones.senses())[1]

    def advantages(self) -> torch.Tensor:
        surprise = self.rewards + GAMMA * self.values[1:] * self.goes_on - self.values[:-1]
        for tick in reversed(range(len(surprise) - 1)):
            surprise[tick] += GAMMA * LAMBDA * self.goes_on[tick] * surprise[tick + 1]
        return surprise


def learn(net: ActorCritic, optimizer: torch.optim.Optimizer, rollout: Rollout, parts: int) -> torch.Tensor:
    gain = rollout.advantages()
    wanted = gain + rollout.values[:-1]
    gain = (gain - gain.mean()) / (gain.std() + 1e-6)
    every = (rollout.senses, rollout.moves, rollout.chance, gain, wanted)
    for senses, moves, before, better, value in zip(*(part.chunk(parts) for part in every), strict=True):
        mean, guess = net(senses)
        ratio = (net.chance(mean, moves) - before).exp()
        loss = -torch.minimum(ratio * better, ratio.clamp(1 - CLIP, 1 + CLIP) * better).mean()
        loss = loss + 0.5 * (guess - value).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    number, ticks, width, parts = (65536, 16, 1024, 4) if DEVICE == "cuda" else (5, 4, 8, 2)
    drones, net = Drones(number), ActorCritic(16, width, 3).to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    rollout = Rollout(ticks, number, 16, 3)
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        rollout.fill(drones, net)
        loss = learn(net, optimizer, rollout, parts)
    last = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - began) / (STEPS - WARM):.3f} loss {last:.6f}")


if __name__ == "__main__":
    main()
