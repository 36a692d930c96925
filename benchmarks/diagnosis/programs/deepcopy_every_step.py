# SPDX-License-Identifier: Apache-2.0
"""The old policy that an update must stay close to: a deep copy of the model, made anew in every step."""

import copy
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


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.act, self.down = nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


def make_policy(states: int, width: int, blocks: int, actions: int) -> nn.Module:
    body = [Block(width) for _ in range(blocks)]
    return nn.Sequential(nn.Linear(states, width), *body, nn.LayerNorm(width), nn.Linear(width, actions))


class OldPolicy:
    """The policy as it was before the last update."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)

    def keep(self, model: nn.Module) -> None:
        if MENDED:
            with torch.no_grad():
                torch._foreach_copy_(list(self.model.parameters()), list(model.parameters()))
        else:
            self.model = copy.deepcopy(model).requires_grad_(False)


class Learner:
    def __init__(self, model: nn.Module, lr: float = 1e-4) -> None:
        self.model, self.old = model, OldPolicy(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=DEVICE == "cuda")

    def learn(self, states: torch.Tensor, actions: torch.Tensor, gains: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            log_p = F.log_softmax(self.model(states).float(), dim=-1)
            with torch.no_grad():
                old_log_p = F.log_softmax(self.old.model(states).float(), dim=-1)
        ratio = (log_p - old_log_p).gather(1, actions[:, None])[:, 0].exp()
        close = F.kl_div(log_p, old_log_p, log_target=True, reduction="batchmean")
        loss = 0.1 * close - torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
        self.old.keep(self.model)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    states, width, blocks, rows = (128, 512, 24, 4096) if DEVICE == "cuda" else (8, 16, 2, 8)
    learner = Learner(make_policy(states, width, blocks, 18).to(DEVICE))
    seen = torch.randn(rows, states, device=DEVICE)
    actions = torch.randint(0, 18, (rows,), device=DEVICE)
    gains = torch.randn(rows, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = learner.learn(seen, actions, gains)
    report(began, loss)


if __name__ == "__main__":
    main()
