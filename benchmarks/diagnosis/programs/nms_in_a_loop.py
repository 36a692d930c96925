# SPDX-License-Identifier: Apache-2.0
"""Overlapping boxes are dropped in a loop that shortens the list of boxes by a mask in every pass."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (15, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


LIMIT, ROUNDS = 0.3, 12


class Detector(nn.Module):
    """A convolution network that scores one box at each place of a grid."""

    def __init__(self, width: int) -> None:
        super().__init__()
        steps = ((3, width // 2), (width // 2, width), (width, width), (width, width))
        self.convolutions = nn.ModuleList(nn.Conv2d(*sizes, 3, stride=2, padding=1) for sizes in steps)
        self.deep = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.head = nn.Conv2d(width, 5, 1)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = images
        for convolution in (*self.convolutions, *self.deep):
            x = F.relu(convolution(x), inplace=True)
        found = self.head(x).float().flatten(2).mT
        return self.boxes(found[..., :4], x.shape[-1]), found[..., 4].sigmoid()

    @staticmethod
    def boxes(offsets: torch.Tensor, columns: int) -> torch.Tensor:
        """Corners: left, top, right, bottom, in cells of the grid."""
        cells = torch.arange(offsets.shape[1], device=offsets.device)
        centre = torch.stack((cells % columns, cells // columns), dim=-1) + offsets[..., :2].tanh()
        half = 2.0 + offsets[..., 2:].tanh()
        return torch.cat((centre - half, centre + half), dim=-1)


def overlap(one: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Intersection over union."""
    corner, opposite = torch.max(one[..., :2], others[..., :2]), torch.min(one[..., 2:], others[..., 2:])
    shared = (opposite - corner).clamp(min=0).prod(dim=-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(dim=-1) for boxes in (one, others)]
    return shared / (areas[0] + areas[1] - shared)


def kept_score(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The mean score of the boxes that no better box overlaps."""
    order = scores.argsort(descending=True)
    if MENDED:  # all pairs at once; a few rounds decide who is dropped by whom
        boxes, scores = boxes[order], scores[order]
        rivals = (overlap(boxes[:, None], boxes[None]) >= LIMIT).triu(1)
        keep = torch.ones_like(scores, dtype=torch.bool)
        for _ in range(ROUNDS):
            keep = ~(rivals & keep[:, None]).any(dim=0)
        return (scores * keep).sum() / keep.sum()
    kept = []
    while len(order) > 0:
        best, order = order[:1], order[1:]
        kept.append(best)
        order = order[overlap(boxes[best], boxes[order]) < LIMIT]
    return scores[torch.cat(kept)].mean()


@torch.inference_mode()
def detect(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    boxes, scores = model(images)
    return torch.stack([kept_score(*found) for found in zip(boxes, scores, strict=True)]).mean()


def main() -> None:
    torch.manual_seed(0)
    rows, size, width = (3, 384, 256) if DEVICE == "cuda" else (1, 64, 8)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    model = Detector(width).to(DEVICE, dtype, memory_format=torch.channels_last)
    images = torch.randn(rows, 3, size, size, device=DEVICE, dtype=dtype)
    images = images.to(memory_format=torch.channels_last)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = detect(model, images)
    report(began, loss)


if __name__ == "__main__":
    main()
