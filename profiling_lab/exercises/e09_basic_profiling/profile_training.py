# SPDX-License-Identifier: Apache-2.0
"""Train a classifier with many classes on the CPU, and profile it. Writes trace.json.

python profile_training.py
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

ROWS, WIDTH, CLASSES = 128, 64, 4096
SMALL = (8, 16, 64)


class Classifier(nn.Module):
    """One hidden layer and a score for each class."""

    def __init__(self, width, classes):
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.scores = nn.Linear(width, classes)

    def forward(self, x):
        return self.scores(F.gelu(self.hidden(x)))


def make_batch(generator, size):
    """Random inputs and labels."""
    rows, width, classes = size
    return torch.randn(rows, width, generator=generator), torch.randint(classes, (rows,), generator=generator)


def hit_rate(scores, labels, k=5):
    """How often the label is among the k highest scores."""
    best = scores.argsort(dim=1, descending=True)[:, :k]
    return (best == labels[:, None]).any(dim=1).float().mean()


def training_step(model, optimizer, generator, size):
    """One step. Returns its loss and its hit rate."""
    x, labels = make_batch(generator, size)
    scores = model(x)
    loss = F.cross_entropy(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach(), hit_rate(scores.detach(), labels)


def train(steps, seed=0, size=(ROWS, WIDTH, CLASSES), after_step=lambda: None):
    """So many steps. Returns loss and hit rate of each."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Classifier(*size[1:])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = []
    for _ in range(steps):
        results.append(training_step(model, optimizer, generator, size))
        after_step()
    return [(loss.item(), rate.item()) for loss, rate in results]


def main():
    parser = argparse.ArgumentParser(description="Train, profile, and write trace.json.")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--small", action="store_true", help="a second on any CPU")
    args = parser.parse_args()
    torch.set_num_threads(1)
    size = SMALL if args.small else (ROWS, WIDTH, CLASSES)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        results = train(args.steps, size=size)
    print(profiler.key_averages().table(sort_by="cpu_time_total", row_limit=12))
    profiler.export_chrome_trace("trace.json")
    print(f"loss {results[-1][0]:.4f}, hit rate {results[-1][1]:.3f}")


if __name__ == "__main__":
    main()
