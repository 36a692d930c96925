# SPDX-License-Identifier: Apache-2.0
"""Train a small network whose channels are shifted and scaled group by group: the program to be profiled.

python train.py --steps 2
python train.py --small --device cpu
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class GroupedScale(nn.Module):
    """Shift, clip, scale and shift again, for x (batch, groups, width); each group has its own numbers."""

    def __init__(self, groups, width):
        super().__init__()
        self.bias1 = nn.Parameter(0.1 * torch.randn(groups, width))
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(groups, width))
        self.bias2 = nn.Parameter(0.1 * torch.randn(groups, width))

    def forward(self, x):
        x = F.relu(x + self.bias1)  # (groups, width) goes along with every row of the batch
        return x * self.scale + self.bias2


class Network(nn.Module):
    """Two layers, each with its grouped scale."""

    def __init__(self, groups, width):
        super().__init__()
        size = groups * width
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(2))
        self.scales = nn.ModuleList(GroupedScale(groups, width) for _ in range(2))
        self.groups = groups

    def forward(self, x):
        for layer, scale in zip(self.layers, self.scales, strict=True):
            y = layer(x)
            x = x + scale(y.unflatten(1, (self.groups, -1))).flatten(1)
        return x


class Job:
    """What is trained, and on what."""

    def __init__(self, model, x, target):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.x, self.target = x, target


def build(device, small=False, seed=0, dtype=torch.float32):
    """A model and its data, both on the device."""
    torch.manual_seed(seed)
    groups, width, rows = (4, 4, 8) if small else (24, 32, 256)
    model = Network(groups, width)
    x, target = torch.randn(2, rows, groups * width).to(device, dtype)
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
    parser.add_argument("--steps", type=int, default=2)
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
