# SPDX-License-Identifier: Apache-2.0
"""Train a small network and log the size of its weights: the program to be profiled.

python train.py --steps 6
python train.py --small --device cpu
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class Network(nn.Module):
    """Linear layers with a ReLU between them; ten scores per row."""

    def __init__(self, width, layers):
        super().__init__()
        self.hidden = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.scores = nn.Linear(width, 10)

    def forward(self, x):
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.scores(x)


class Job:
    """What is trained, and on what."""

    def __init__(self, model, x, labels):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.x, self.labels = x, labels


def build(device, small=False, seed=0, dtype=torch.float32):
    """A model and its data, both on the device."""
    torch.manual_seed(seed)
    width, layers, rows = (16, 2, 8) if small else (1024, 4, 4096)
    model = Network(width, layers)
    x, labels = torch.randn(rows, width), torch.randint(10, (rows,))
    return Job(model.to(device, dtype), x.to(device, dtype), labels.to(device))


def weight_sizes(model):
    """The mean absolute value of each parameter, for the log; still on the device."""
    return [parameter.detach().abs().mean() for parameter in model.parameters()]


def train(job, steps):
    """So many steps. Returns the loss of each, and after it the size of every parameter."""
    log = []
    for _ in range(steps):
        loss = F.cross_entropy(job.model(job.x), job.labels)
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()
        log += [loss.detach(), *weight_sizes(job.model)]
    return torch.stack(log).tolist()  # the only wait, after the last step


def main():
    parser = argparse.ArgumentParser(description="Train a small network.")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="a few seconds on any CPU")
    args = parser.parse_args()
    job = build(args.device, args.small or args.device == "cpu")
    train(job, 1)
    begin = time.perf_counter()
    log = train(job, args.steps)
    took_ms = 1e3 * (time.perf_counter() - begin) / args.steps
    print(f"loss {log[0]:.4f}, {took_ms:.2f} ms per step")


if __name__ == "__main__":
    main()
