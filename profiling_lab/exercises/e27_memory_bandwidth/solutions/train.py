# SPDX-License-Identifier: Apache-2.0
"""Train a small network of wide layers, each normalised and activated: the program to be profiled.

python train.py --steps 3
python train.py --small --device cpu
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

from profiling_lab.ops import layer_norm_gelu


class Block(nn.Module):
    """Up to a wide layer and down again."""

    def __init__(self, narrow, wide):
        super().__init__()
        self.up = nn.Linear(narrow, wide)
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(wide))
        self.bias = nn.Parameter(0.1 * torch.randn(wide))
        self.down = nn.Linear(wide, narrow)

    def forward(self, x):
        y = self.up(x)
        y = layer_norm_gelu(y, self.weight, self.bias)
        return x + self.down(y)


class Job:
    """What is trained, and on what."""

    def __init__(self, model, x, target):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.x, self.target = x, target


def build(device, small=False, seed=0, dtype=torch.float32):
    """A model and its data, both on the device."""
    torch.manual_seed(seed)
    narrow, wide, rows = (8, 64, 16) if small else (32, 4096, 8192)
    model = nn.Sequential(*(Block(narrow, wide) for _ in range(2)))
    x, target = torch.randn(2, rows, narrow).to(device, dtype)
    return Job(model.to(device, dtype), x, target)


def train(job, steps):
    """So many steps. Returns the loss of each."""
    losses = []
    for _ in range(steps):
        loss = F.mse_loss(job.model(job.x), job.target)
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def main():
    parser = argparse.ArgumentParser(description="Train a small network.")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="a few seconds on any CPU")
    args = parser.parse_args()
    job = build(args.device, args.small or args.device == "cpu")
    train(job, 1)
    begin = time.perf_counter()
    losses = train(job, args.steps)
    took_ms = 1e3 * (time.perf_counter() - begin) / args.steps
    print(f"loss {losses[0]:.4f}, {took_ms:.2f} ms per step")


if __name__ == "__main__":
    main()
