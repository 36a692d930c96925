# SPDX-License-Identifier: Apache-2.0
"""Train a network whose activations wait in host memory for the backward pass: the program to be profiled.

    python train.py --steps 4
    python train.py --small --device cpu

It stands for a network whose activations do not fit on the GPU: they have to go to the host and back.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class Network(nn.Module):
    """Linear layers with a GELU between them; ten scores per row."""

    def __init__(self, width, layers):
        super().__init__()
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.scores = nn.Linear(width, 10)

    def forward(self, x):
        for layer in self.hidden:
            x = F.gelu(layer(x))
        return self.scores(x)


class Offload:
    """Keeps what the backward pass needs in host memory until it is needed."""

    def __init__(self, device):
        self.device = device

    def keep(self, tensor):
        """Called in the forward pass for every tensor that autograd saves."""
        return tensor.cpu()

    def fetch(self, kept):
        """Called in the backward pass for each of them."""
        return kept.to(self.device)


class Job:
    """What is trained, and on what."""

    def __init__(self, model, x, labels, device):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.x, self.labels = x, labels
        self.offload = Offload(device)


def build(device, small=False, seed=0, dtype=torch.float32):
    """A model and its data, both on the device."""
    torch.manual_seed(seed)
    width, layers, rows = (16, 2, 8) if small else (1024, 4, 2048)
    model = Network(width, layers)
    x, labels = torch.randn(rows, width), torch.randint(10, (rows,))
    return Job(model.to(device, dtype), x.to(device, dtype), labels.to(device), device)


def train(job, steps):
    """So many steps. Returns the loss of each."""
    losses = []
    for _ in range(steps):
        with torch.autograd.graph.saved_tensors_hooks(job.offload.keep, job.offload.fetch):
            loss = F.cross_entropy(job.model(job.x), job.labels)
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def main():
    parser = argparse.ArgumentParser(description="Train a network with its activations in host memory.")
    parser.add_argument("--steps", type=int, default=4)
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
