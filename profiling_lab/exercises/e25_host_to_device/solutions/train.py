# SPDX-License-Identifier: Apache-2.0
"""Train a small image classifier on batches that lie in host memory: the program to be profiled.

    python train.py --steps 4
    python train.py --small --device cpu

The data set stands for one that does not fit on the GPU: it has to stay in host memory.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class Classifier(nn.Module):
    """Patches, one convolution over them, an average: ten scores per image."""

    def __init__(self, channels):
        super().__init__()
        self.patches = nn.Conv2d(3, channels, 4, stride=4)
        self.mix = nn.Conv2d(channels, channels, 3, padding=1)
        self.scores = nn.Linear(channels, 10)

    def forward(self, x):
        x = F.relu(self.patches(x))
        x = F.relu(self.mix(x))
        return self.scores(x.mean(dim=(2, 3)))


class Job:
    """What is trained, and how far it is."""

    def __init__(self, model, batches, device):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.batches = batches
        self.device = device
        self.step = 0
        self.copies = torch.cuda.Stream() if device != "cpu" else None
        self.next = None

    def fetch(self):
        """Start to copy the next batch while the GPU computes."""
        x, labels = self.batches[self.step % len(self.batches)]
        self.step += 1
        if self.copies is None:
            return x, labels
        with torch.cuda.stream(self.copies):
            return x.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def batch(self):
        """The batch whose copy was begun a step ago; the copy of the one after it begins."""
        x, labels = self.next or self.fetch()
        if self.copies is not None:
            here = torch.cuda.current_stream()
            here.wait_stream(self.copies)
            for tensor in (x, labels):
                tensor.record_stream(here)  # its memory may be used again only after this stream is done
        self.next = self.fetch()
        return x, labels


def build(device, small=False, seed=0, dtype=torch.float32):
    """A model on the device, and batches of images with their labels in host memory."""
    torch.manual_seed(seed)
    images, size, channels = (4, 16, 4) if small else (256, 128, 32)
    model = Classifier(channels)
    batches = []
    for _ in range(4):
        x, labels = torch.rand(images, 3, size, size), torch.randint(10, (images,))
        batches.append((x.to(dtype), labels))
    if device != "cpu":
        batches = [(x.pin_memory(), labels.pin_memory()) for x, labels in batches]
    return Job(model.to(device, dtype), batches, device)


def train(job, steps):
    """So many steps. Returns the loss of each."""
    losses = []
    for _ in range(steps):
        x, labels = job.batch()
        loss = F.cross_entropy(job.model(x), labels)
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def main():
    parser = argparse.ArgumentParser(description="Train a small image classifier.")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="a few seconds on any CPU")
    args = parser.parse_args()
    job = build(args.device, args.small or args.device == "cpu")
    train(job, 1)
    begin = time.perf_counter()
    losses = train(job, args.steps)
    took_ms = 1e3 * (time.perf_counter() - begin) / args.steps
    print(f"loss {losses[-1]:.4f}, {took_ms:.2f} ms per step")


if __name__ == "__main__":
    main()
