# SPDX-License-Identifier: Apache-2.0
"""A replay memory that pins each new rollout on the thread that trains."""

import sys
import time

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


class Replay:
    """The rollouts so far, pinned, so that any of them uploads fast."""

    def __init__(self, capacity: int, shape: tuple[int, ...]) -> None:
        self.kept: list[torch.Tensor] = []
        self.ring = torch.empty(capacity if MENDED else 0, *shape, pin_memory=DEVICE == "cuda")

    def add(self, rollout: torch.Tensor) -> None:
        if MENDED:
            self.kept.append(self.ring[len(self.kept)].copy_(rollout))
        else:
            self.kept.append(rollout.pin_memory() if DEVICE == "cuda" else rollout.clone())

    def pick(self, number: int) -> torch.Tensor:
        return self.kept[7 * number % len(self.kept)].to(DEVICE, non_blocking=True)


class ActorCritic(nn.Module):
    def __init__(self, features: int, width: int, actions: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.policy = nn.Linear(width, actions)
        self.value = nn.Linear(width, 1)

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.trunk(seen)
        return F.log_softmax(self.policy(y), dim=-1), self.value(y)[..., 0]


class Learner:
    def __init__(self, model: ActorCritic) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")

    def learn(self, rollout: torch.Tensor) -> torch.Tensor:
        returns = rollout[..., 0]
        with torch.autocast(DEVICE, torch.bfloat16):
            log_p, value = self.model(rollout)
        advantage = returns - value.detach().float()
        loss = F.mse_loss(value.float(), returns) - (log_p[..., 0].float() * advantage).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    shape = (128, 256, 256) if DEVICE == "cuda" else (4, 2, 16)
    learner = Learner(ActorCritic(shape[-1], 512 if DEVICE == "cuda" else 32, actions=18).to(DEVICE))
    played = [torch.randn(shape) for _ in range(3)]  # the actors write their rollouts into these
    replay = Replay(STEPS, shape)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        replay.add(played[step % 3])
        loss = learner.learn(replay.pick(step))
    report(began, loss)


if __name__ == "__main__":
    main()
