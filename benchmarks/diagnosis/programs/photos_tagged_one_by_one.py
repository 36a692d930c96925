# SPDX-License-Identifier: Apache-2.0
"""Photographs that people offer for sale get tags, by a network that sees all that came in a second."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in "ab")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.two(F.relu(self.one(x))))


class Network(nn.Module):
    """Norms are already folded into the convolutions."""

    def __init__(self, channels: int, depth: int, tags: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, channels, 7, stride=4, padding=3)
        layers: list[nn.Module] = []
        for stage in range(3):
            now = channels * 2**stage
            layers += [
                *(Residual(now) for _ in range(depth)),
                nn.Conv2d(now, 2 * now, 3, stride=2, padding=1),
            ]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(8 * channels, tags)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(F.relu(self.into(pictures))).mean(dim=(2, 3)))


class Photos:
    """What came in: photographs as bytes, no two sizes of which need to be alike."""

    def __init__(self, rows: int, side: int) -> None:
        sizes = [(side + 16 * (row % 5), side + 32 * (row % 3)) for row in range(rows)]
        self.each = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in sizes]
        if DEVICE == "cuda":
            self.each = [photo.pin_memory() for photo in self.each]


class Tagger:
    def __init__(self, network: Network, side: int, most: int) -> None:
        self.network, self.side, self.most = network, side, most
        self.mean = torch.tensor([124.0, 116.0, 104.0], device=DEVICE, dtype=torch.bfloat16).view(3, 1, 1)

    def ready(self, photo: torch.Tensor) -> torch.Tensor:
        """As the network wants it: of one size, and about zero."""
        pixels = (photo.to(DEVICE, non_blocking=True).to(torch.bfloat16) - self.mean) / 58.0
        return F.interpolate(pixels[None], size=(self.side, self.side), mode="bilinear")[0]

    def scores(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.network(pictures.contiguous(memory_format=torch.channels_last)).float().sigmoid()

    def tag(self, photos: Photos) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest tags of each photograph, and how likely they are."""
        if MENDED:
            scores = self.scores(torch.stack([self.ready(photo) for photo in photos.each]))
        else:
            scores = torch.cat([self.scores(self.ready(photo)[None]) for photo in photos.each])
        best = scores.topk(self.most, dim=1)
        return best.values, best.indices


class Shop:
    """Counts how often each tag was given, which the menu of the shop shows."""

    def __init__(self, tags: int) -> None:
        self.counts = torch.zeros(tags, device=DEVICE)
        self.sure = torch.zeros((), device=DEVICE)

    def add(self, likely: torch.Tensor, tags: torch.Tensor) -> None:
        self.counts.index_add_(0, tags.flatten(), likely.flatten())
        self.sure += likely.mean()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    rows, side, channels, depth, tags, most = (
        (48, 256, 64, 4, 2000, 5) if DEVICE == "cuda" else (3, 32, 4, 1, 9, 2)
    )
    network = Network(channels, depth, tags).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)
    tagger, shop = Tagger(network.eval(), side, most), Shop(tags)
    photos = [Photos(rows, side) for _ in range(3)]
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        shop.add(*tagger.tag(photos[step % 3]))
    report(began, shop.sure / STEPS)
    assert torch.isfinite(shop.counts).all()


if __name__ == "__main__":
    main()
