# SPDX-License-Identifier: Apache-2.0
"""What grows on fields is learned from satellite pictures, which come as NumPy arrays."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)
ROWS, BANDS, SIDE, WIDTH, DEPTH, CROPS = (40, 8, 512, 64, 6, 18) if DEVICE == "cuda" else (2, 3, 16, 8, 1, 4)
CUT = 4  # pixels of the picture for one of the map


def read_season(pictures: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Reflectance of tiles in all bands, and the map of crops for each of them."""
    random = np.random.default_rng(0)
    season = []
    for _ in range(pictures):
        tiles = random.random((ROWS, BANDS, SIDE, SIDE), dtype=np.float32)
        crops = random.integers(0, CROPS, (ROWS, SIDE // CUT, SIDE // CUT), dtype=np.uint8)
        season.append((tiles, crops))
    return season


def pinned(array: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if DEVICE == "cuda" else tensor


def block(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
    )


def build() -> nn.ModuleDict:
    return nn.ModuleDict(
        {
            "stem": nn.Conv2d(BANDS, WIDTH, CUT, stride=CUT),
            "blocks": nn.ModuleList(block(WIDTH) for _ in range(DEPTH)),
            "head": nn.Conv2d(WIDTH, CROPS, 1),
        }
    )


def classify(net: nn.ModuleDict, tiles: torch.Tensor) -> torch.Tensor:
    x = net["stem"](tiles)
    for layers in net["blocks"]:
        x = F.relu(x + layers(x))
    return net["head"](x)


def train_step(net: nn.ModuleDict, optimizer: torch.optim.Optimizer, tiles, crops) -> torch.Tensor:
    with torch.autocast(DEVICE, torch.bfloat16):
        scores = classify(net, tiles)
    loss = F.cross_entropy(scores.float(), crops.long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    season = read_season(2)
    if MENDED:
        season = [(pinned(tiles), pinned(crops)) for tiles, crops in season]
    net = build().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        tiles, crops = season[step % len(season)]
        if MENDED:
            tiles, crops = tiles.to(DEVICE, non_blocking=True), crops.to(DEVICE, non_blocking=True)
        else:
            tiles = torch.from_numpy(tiles).to(DEVICE)
            crops = torch.from_numpy(crops).to(DEVICE)
        loss = train_step(net, optimizer, tiles, crops)
    last = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - began) / (STEPS - WARM):.3f} loss {last:.6f}")


if __name__ == "__main__":
    main()
