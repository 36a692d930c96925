# SPDX-License-Identifier: Apache-2.0
"""Train a small convolutional network, in such a way that two runs give the same: the program to be profiled.

python train.py --steps 2
python train.py --small --device cpu
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


def reproducible():
    """Settings under which two runs agree to the last bit: nothing is chosen by how fast it was."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)


class Block(nn.Module):
    """A convolution, added to what came in."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        y = self.conv(x)
        return x + F.relu(y)


class Job:
    """What is trained, and on what."""

    def __init__(self, model, x, target):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.x, self.target = x, target


def build(device, small=False, seed=0, dtype=torch.float32):
    """A model and its data, both on the device."""
    torch.manual_seed(seed)
    images, channels, size = (2, 4, 8) if small else (32, 64, 56)
    model = nn.Sequential(*(Block(channels) for _ in range(2)))
    x, target = torch.randn(2, images, channels, size, size).to(device, dtype)
    return Job(model.to(device, dtype), x, target)


def train(job, steps):
    """So many steps. Returns the loss of each."""
    losses = []
    with reproducible():
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
