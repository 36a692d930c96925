# SPDX-License-Identifier: Apache-2.0
"""A policy with many choices, whose distributions check their arguments and samples on the GPU."""

import sys
import time

import torch
from torch import nn
from torch.distributions import Categorical
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


CHECKED = False if MENDED else None  # None is the default of torch.distributions: checks are on


class Commander(nn.Module):
    """Chooses an order for each unit from a map."""

    def __init__(self, planes: int, width: int, depth: int, units: int, orders: int) -> None:
        super().__init__()
        shapes = [(planes, width)] + [(width, width)] * depth
        self.layers = nn.ModuleList(nn.Conv2d(*shape, 3, padding=1) for shape in shapes)
        self.heads = nn.ModuleList(nn.Linear(width, orders) for _ in range(units))

    def forward(self, board: torch.Tensor) -> torch.Tensor:
        y = board
        for layer in self.layers:
            y = F.relu(layer(y), inplace=True)
        return y.mean(dim=(2, 3))


def act(policy: Commander, board: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """An order for each unit, and how likely all of them were."""
    seen = policy(board)
    orders, log_p = [], torch.zeros(len(board), device=board.device)
    for head in policy.heads:
        choice = Categorical(logits=head(seen).float(), validate_args=CHECKED)
        order = choice.sample()
        log_p = log_p + choice.log_prob(order)
        orders.append(order)
    return torch.stack(orders, dim=1), log_p


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    games, planes, size, width, depth, units, orders = (
        (256, 32, 64, 128, 4, 32, 24) if DEVICE == "cuda" else (2, 3, 8, 8, 1, 3, 4)
    )
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    policy = Commander(planes, width, depth, units, orders).to(
        DEVICE, dtype, memory_format=torch.channels_last
    )
    board = torch.randn(games, planes, size, size, device=DEVICE, dtype=dtype)
    board = board.to(memory_format=torch.channels_last)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        chosen, log_p = act(policy, board)
    report(began, log_p.mean() + chosen.float().mean())


if __name__ == "__main__":
    main()
