# SPDX-License-Identifier: Apache-2.0
"""Train a small network on sequences (batch, channels, tokens): the program to be profiled.

python train.py --steps 3
python train.py --small --device cpu
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two normalisations with an activation between them, added to what came in."""

    def __init__(self, channels):
        super().__init__()
        self.before = nn.LayerNorm(channels)
        self.after = nn.LayerNorm(channels)
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(channels))

    def forward(self, x):
        y = F.gelu(self.before(x)) * self.scale
        return x + self.after(y)


class ChannelsLast(nn.Sequential):
    """Blocks that see (batch, tokens, channels): the layout is changed once, before the first of them."""

    def forward(self, x):
        return super().forward(x.transpose(1, 2).contiguous()).transpose(1, 2)


class Job:
    """What is trained, and on what."""

    def __init__(self, model, x, target):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.x, self.target = x, target


def build(device, small=False, seed=0, dtype=torch.float32):
    """A model and its data, both on the device."""
    torch.manual_seed(seed)
    batch, channels, tokens = (2, 8, 6) if small else (64, 256, 1024)
    model = ChannelsLast(*(Block(channels) for _ in range(3)))
    x, target = torch.randn(2, batch, channels, tokens).to(device, dtype)
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
