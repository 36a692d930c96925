# SPDX-License-Identifier: Apache-2.0
"""Train a small classifier and count how often it is right: the program to be profiled.

python train.py --steps 2
python train.py --small --device cpu
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class Classifier(nn.Module):
    """Some layers and a score for each class."""

    def __init__(self, width, layers, classes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.scores = nn.Linear(width, classes)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.scores(x)


def hits(logits, labels):
    """How many of a batch are guessed right: a tensor that stays on the GPU until it is read."""
    return (logits.argmax(dim=1) == labels).sum()


class Job:
    """What is trained, and on what."""

    def __init__(self, model, x, labels):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.x, self.labels = x, labels


def build(device, small=False, seed=0, dtype=torch.float32):
    """A model and its data, both on the device."""
    torch.manual_seed(seed)
    width, layers, rows = (16, 2, 8) if small else (512, 4, 128)
    model = Classifier(width, layers, classes=5)
    x, labels = torch.randn(rows, width), torch.randint(5, (rows,))
    return Job(model.to(device, dtype), x.to(device, dtype), labels.to(device))


def train(job, steps):
    """So many steps. Returns the loss of each, and how large a part of all guesses was right."""
    losses, right = [], 0
    for _ in range(steps):
        logits = job.model(job.x)
        loss = F.cross_entropy(logits, job.labels)
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()
        losses.append(loss.detach())
        right += hits(logits.detach(), job.labels)
    return [*torch.stack(losses).tolist(), float(right) / (steps * len(job.labels))]


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
