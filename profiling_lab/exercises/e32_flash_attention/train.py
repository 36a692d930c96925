# SPDX-License-Identifier: Apache-2.0
"""Train one layer of causal self-attention on long sequences: the program to be profiled.

python train.py --steps 4
python train.py --small --device cpu
"""

import argparse
import math
import time

import torch
from torch import nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    """Each token looks at itself and at those before it."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def attend(self, q, k, v):
        """(batch, rows, heads, dim), all three, to the same."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        rows = q.shape[-2]
        later = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
        scores = q @ k.transpose(-2, -1)
        scores = scores / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(later, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        return (weights @ v).transpose(1, 2)

    def forward(self, x):
        batch, rows, width = x.shape
        q, k, v = self.project(x).view(batch, rows, 3, self.heads, width // self.heads).unbind(2)
        return self.out(self.attend(q, k, v).reshape(batch, rows, width))


class Job:
    """What is trained, and how far it is."""

    def __init__(self, model, x, target):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.x = x
        self.target = target


def build(device, small=False, seed=0, dtype=torch.float32):
    """A model with its data on the device. At full size it computes in bfloat16."""
    torch.manual_seed(seed)
    batch, rows, width, heads = (2, 40, 32, 2) if small else (2, 4096, 1024, 16)
    if not small and dtype == torch.float32:
        dtype = torch.bfloat16
    model = SelfAttention(width, heads).to(device, dtype)
    x, target = (torch.randn(batch, rows, width).to(device, dtype) for _ in range(2))
    return Job(model, x, target)


def train(job, steps):
    """So many steps. Returns the loss of each."""
    losses = []
    for _ in range(steps):
        job.optimizer.zero_grad()
        loss = (
            (job.model(job.x) - job.target)
            .square()
            .mean(dtype=torch.promote_types(job.x.dtype, torch.float32))
        )
        loss.backward()
        job.optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="a size for the CPU")
    args = parser.parse_args()
    job = build(args.device, args.small or args.device == "cpu")
    train(job, 2)
    begin = time.perf_counter()
    losses = train(job, args.steps)
    print(f"{1e3 * (time.perf_counter() - begin) / args.steps:.2f} ms per step, loss {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
