# SPDX-License-Identifier: Apache-2.0
"""Thousands of drones learn to hover at once; one that falls begins again on its own pad."""

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


class Drones:
    """Height, climb, tilt and spin of each, and how long it is in the air."""

    def __init__(self, count: int, longest: int) -> None:
        self.longest = longest
        self.pads = 0.1 * torch.randn(count, 4, device=DEVICE)
        self.state = self.pads.clone()
        self.age = torch.randint(0, longest, (count,), device=DEVICE)

    def move(self, thrust: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Thrust of both rotors; the reward and whether this was the end."""
        height, climb, tilt, spin = self.state.unbind(dim=1)
        left, right = thrust.clamp(-1, 1).unbind(dim=1)
        climb = climb + 0.05 * ((1 + 0.5 * (left + right)) * tilt.cos() - 1)
        spin = spin + 0.1 * (left - right)
        self.state = torch.stack((height + 0.05 * climb, climb, tilt + 0.05 * spin, spin), dim=1)
        self.age += 1
        height, _, tilt, _ = self.state.unbind(dim=1)
        over = (height.abs() > 2) | (tilt.abs() > 1) | (self.age >= self.longest)
        reward = 1 - height.abs() - tilt.abs()
        self.put_back(over)
        return reward, over

    def put_back(self, over: torch.Tensor) -> None:
        if MENDED:
            self.state = torch.where(over[:, None], self.pads, self.state)
            self.age.masked_fill_(over, 0)
            return
        for number in over.nonzero().flatten().tolist():
            self.state[number] = self.pads[number]
            self.age[number] = 0


class ActorCritic(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, width), nn.Linear(width, 3)
        self.hidden = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where thrust is drawn around, and the value of the state."""
        with torch.autocast(DEVICE, torch.bfloat16):
            out = self.head(F.silu(self.hidden(self.first(state))))
        return out[..., :2].float(), out[..., 2].float()


@torch.no_grad()
def fly(model: ActorCritic, drones: Drones, moves: int, spread: float) -> tuple[torch.Tensor, ...]:
    """States, thrusts and returns of some moves."""
    states, thrusts, rewards, ends = [], [], [], []
    for _ in range(moves):
        states.append(drones.state)
        mean = model(drones.state)[0]
        thrusts.append(mean + spread * torch.randn_like(mean))
        reward, over = drones.move(thrusts[-1])
        rewards.append(reward)
        ends.append(over)
    following, returns = model(drones.state)[1], []
    for reward, over in zip(reversed(rewards), reversed(ends), strict=True):
        following = reward + 0.98 * following.masked_fill(over, 0)
        returns.append(following)
    return torch.cat(states), torch.cat(thrusts), torch.cat(returns[::-1])


def main() -> None:
    torch.manual_seed(0)
    count, longest, moves, width, spread = (
        (8192, 50, 8, 1024, 0.3) if DEVICE == "cuda" else (12, 4, 3, 16, 0.3)
    )
    drones, model = Drones(count, longest), ActorCritic(width).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        states, thrusts, returns = fly(model, drones, moves, spread)
        mean, value = model(states)
        gain = (returns - value).detach()
        unlikely = ((thrusts - mean) / spread).square().sum(dim=1)
        loss = (0.5 * unlikely * gain).mean() + 0.5 * F.mse_loss(value, returns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
