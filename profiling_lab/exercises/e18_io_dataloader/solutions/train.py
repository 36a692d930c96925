# SPDX-License-Identifier: Apache-2.0
"""Train a classifier of images that are read from a file: the program to be profiled.

python train.py
python train.py --steps 10
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SIDE, CHANNELS, CLASSES = 32, 3, 10
PIXELS = SIDE * SIDE
RECORD = 1 + CHANNELS * PIXELS  # the label, then one byte for each pixel, channel by channel


def write_images(path, count, seed=0):
    """A file of records with random labels and pixels."""
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(256, (count, RECORD), generator=generator, dtype=torch.uint8)
    data[:, 0] %= CLASSES
    path.write_bytes(data.numpy().tobytes())


class Images(Dataset):
    """The images of a file, with values from -1 to 1."""

    def __init__(self, path):
        self.records = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, RECORD)
        self.scale = torch.tensor([(value - 127.5) / 127.5 for value in range(256)])

    def __len__(self):
        return len(self.records)

    def __getitems__(self, numbers):
        """A whole batch at once."""
        records = torch.from_numpy(self.records[numbers])
        images = self.scale[records[:, 1:].int()].view(-1, CHANNELS, SIDE, SIDE)
        return normalized(images), records[:, 0].long()


def normalized(images):
    """The images with mean 0 in each channel."""
    return images - images.mean(dim=(-2, -1), keepdim=True)


def as_it_is(batch):
    """The batch is complete."""
    return batch


def make_loader(path, batch_size=32):
    """Batches of images and labels, in the order of the file."""
    return DataLoader(Images(path), batch_size=batch_size, drop_last=True, collate_fn=as_it_is)


class Network(nn.Module):
    """Averages of 4 x 4 pixels, one hidden layer, and a score for each class."""

    def __init__(self, width=64):
        super().__init__()
        self.hidden = nn.Linear(CHANNELS * PIXELS // 16, width)
        self.scores = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = F.avg_pool2d(x, 4).flatten(1)
        return self.scores(F.relu(self.hidden(x)))


def train(model, loader, steps, device):
    """So many steps. Returns the loss of the last one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(loader)
    for _ in range(steps):
        x, labels = next(batches)
        x, labels = x.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description="Train a small network on images from a file.")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the model is small
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.bin"
        write_images(path, 32 * args.steps)
        loss = train(Network().to(device), make_loader(path), args.steps, device)
    print(f"{args.steps} steps on {device}, loss {loss:.4f}")


if __name__ == "__main__":
    main()
