# SPDX-License-Identifier: Apache-2.0
"""Flowers are distinguished by pieces of photographs, whose colours are changed before they are cut."""

import sys
import time
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (36, 12) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Cut:
    """A piece from anywhere in the picture, as likely as not the other way round."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, picture: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        top, left = draw.integers(0, np.array(picture.shape[:2]) - self.size + 1)
        piece = picture[top : top + self.size, left : left + self.size]
        return piece[:, ::-1] if draw.random() < 0.5 else piece


class Colours:
    """Bytes become numbers around zero; gamma, colour and light are not the same in any two pictures."""

    mean, spread = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])

    def __call__(self, picture: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        gamma, colour, light = draw.uniform(0.7, 1.3, 3).astype(np.float32)
        picture = (picture.astype(np.float32) / 255) ** gamma
        grey = picture.mean(axis=2, keepdims=True)
        picture = np.clip((grey + colour * (picture - grey)) * light, 0, 1)
        return (picture - self.mean) / self.spread


class Flowers(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, items: int, pictures: int, size: int, piece: int, kinds: int) -> None:
        random = np.random.default_rng(0)
        self.items, self.kinds = items, kinds
        self.pictures = random.integers(0, 256, (pictures, size, size, 3), dtype=np.uint8)
        self.cut, self.colours = Cut(piece), Colours()

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        picture = self.pictures[number % len(self.pictures)]
        where, how = np.random.default_rng(number).spawn(2)
        if MENDED:
            picture = self.colours(self.cut(picture, where), how)
        else:
            picture = self.cut(self.colours(picture, how), where)
        return torch.from_numpy(picture.transpose(2, 0, 1).copy()), number % self.kinds


class Classifier(nn.Module):
    def __init__(self, width: int, kinds: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for given, wanted in pairwise((3, width, 2 * width, 4 * width, 8 * width)):
            layers += [nn.Conv2d(given, wanted, 3, 2, 1, bias=False), nn.BatchNorm2d(wanted), nn.ReLU()]
            layers += [nn.Conv2d(wanted, wanted, 3, 1, 1, bias=False), nn.BatchNorm2d(wanted), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(8 * width, kinds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean(dim=(2, 3)))


def main() -> None:
    torch.manual_seed(0)
    rows, pictures, size, piece, width, kinds, workers = (
        (48, 64, 640, 128, 64, 102, 6) if DEVICE == "cuda" else (2, 3, 24, 8, 4, 5, 1)
    )
    flowers = Flowers(STEPS * rows, pictures, size, piece, kinds)
    loader = DataLoader(flowers, rows, num_workers=workers, pin_memory=DEVICE == "cuda")
    model = Classifier(width, kinds).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    for step, (pieces, truth) in enumerate(loader):
        if step == WARM:
            began = start_clock()
        pieces = pieces.to(DEVICE, non_blocking=True).to(memory_format=torch.channels_last)
        truth = truth.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(pieces), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
