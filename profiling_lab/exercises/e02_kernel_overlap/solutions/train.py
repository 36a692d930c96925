# SPDX-License-Identifier: Apache-2.0
"""Train a classifier of long signals, one tower for each sensor: the program to be profiled.

    python train.py --steps 6
    python train.py --small --device cpu

The signals stand for a data set that does not fit on the GPU: they stay in host memory, which is pinned.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class Tower(nn.Module):
    """One score for each signal of one sensor: twice scaled, normalised over its whole length and bent."""

    def __init__(self, length):
        super().__init__()
        self.gains = nn.ParameterList(torch.randn(length) for _ in range(2))
        self.weight = nn.Parameter(torch.randn(length) / length**0.5)

    def forward(self, x):
        for gain in self.gains:
            x = x * gain
            x = F.layer_norm(x, x.shape[1:])
            x = F.gelu(x)
        return (x * self.weight).sum(dim=1)


class Classifier(nn.Module):
    """Three classes, from the scores of all towers. The towers know nothing of each other."""

    def __init__(self, sensors, length):
        super().__init__()
        self.towers = nn.ModuleList(Tower(length) for _ in range(sensors))
        self.scores = nn.Linear(sensors, 3)
        self.streams = []

    def forward(self, signals):
        device = self.scores.weight.device
        if device.type == "cpu":
            found = [tower(signal) for tower, signal in zip(self.towers, signals, strict=True)]
            return self.scores(torch.stack(found, dim=1))
        self.streams = self.streams or [torch.cuda.Stream() for _ in self.towers]
        here, found = torch.cuda.current_stream(), []
        for tower, signal, stream in zip(self.towers, signals, self.streams, strict=True):
            stream.wait_stream(here)  # the optimizer has changed the parameters on the main stream
            with torch.cuda.stream(stream):  # backward runs each operation on the stream of its forward
                found.append(tower(signal.to(device, non_blocking=True)))
        for score, stream in zip(found, self.streams, strict=True):
            here.wait_stream(stream)
            score.record_stream(here)  # its memory may be used again only after this stream is done
        return self.scores(torch.stack(found, dim=1))


class Job:
    """What is trained, and on what."""

    def __init__(self, model, signals, labels):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.signals, self.labels = signals, labels


def build(device, small=False, seed=0, dtype=torch.float32):
    """A model and the labels on the device, the signals of each sensor in host memory."""
    torch.manual_seed(seed)
    sensors, rows, length = (3, 4, 32) if small else (8, 4, 1 << 18)
    model = Classifier(sensors, length)
    signals = [torch.randn(rows, length).to(dtype) for _ in range(sensors)]
    if device != "cpu":
        signals = [signal.pin_memory() for signal in signals]
    labels = torch.randint(3, (rows,))
    return Job(model.to(device, dtype), signals, labels.to(device))


def train(job, steps):
    """So many steps. Returns the loss of each."""
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(job.model(job.signals), job.labels)
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def main():
    parser = argparse.ArgumentParser(description="Train a classifier of long signals.")
    parser.add_argument("--steps", type=int, default=6)
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
