# SPDX-License-Identifier: Apache-2.0
"""Boxes around things in photographs, written as rows of JSON as the evaluation of COCO wants them."""

import json
import sys
import time
from itertools import pairwise
from typing import Any

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
    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, width, 3, 2, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.beside = nn.Conv2d(given, width, 1, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.second(F.relu(self.norm1(self.first(x)))))
        return F.relu(y + self.beside(x))


class Detector(nn.Module):
    """At each place of a coarse grid: how sure it is of each class, and how far the sides of a box are."""

    def __init__(self, width: int, classes: int, most: int) -> None:
        super().__init__()
        self.most, self.classes = most, classes
        widths = (3, width, 2 * width, 4 * width, 8 * width)
        self.backbone = nn.Sequential(*(Residual(*two) for two in pairwise(widths)))
        self.head = nn.Conv2d(8 * width, classes + 4, 3, 1, 1)

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The boxes of which it is surest, with the scores and the classes."""
        maps = self.head(self.backbone(pictures)).float()
        width = maps.shape[3]
        scores, sides = maps.flatten(2).transpose(1, 2).split((self.classes, 4), dim=2)
        sure, label = scores.sigmoid().max(dim=2)
        sure, place = sure.topk(self.most, dim=1)
        sides = sides.gather(1, place.unsqueeze(2).expand(-1, -1, 4)).exp()
        middle = torch.stack((place % width, place.div(width, rounding_mode="floor")), dim=2) + 0.5
        corner = 16 * (middle - sides[..., :2])
        boxes = torch.cat((corner, 16 * (sides[..., :2] + sides[..., 2:])), dim=2)
        return boxes, sure, label.gather(1, place)


class Results:
    """What COCO's evaluation reads: one row for each box, with left, top, width and height."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, image: int, boxes: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor) -> None:
        if MENDED:
            for bbox, score, label in zip(boxes.tolist(), scores.tolist(), labels.tolist(), strict=True):
                self.rows.append({"image_id": image, "category_id": label, "bbox": bbox, "score": score})
            return
        for box, sure, category in zip(boxes, scores, labels, strict=True):
            row: dict[str, Any] = {"image_id": image}
            row["category_id"] = category.item()
            row["bbox"] = box.tolist()
            row["score"] = sure.item()
            self.rows.append(row)

    def text(self) -> str:
        return json.dumps(self.rows)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, size, width, classes, most = (12, 640, 64, 80, 100) if DEVICE == "cuda" else (2, 64, 4, 3, 5)
    detector = Detector(width, classes, most).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)
    detector.eval()
    photographs = torch.randint(0, 256, (4, rows, 3, size, size), dtype=torch.uint8)
    if DEVICE == "cuda":
        photographs = photographs.pin_memory()
    results = Results()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        pictures = photographs[step % 4].to(DEVICE, non_blocking=True).to(torch.bfloat16) / 255
        found = detector(pictures.contiguous(memory_format=torch.channels_last))
        for number, one in enumerate(zip(*found, strict=True)):
            results.add(step * rows + number, *one)
    report(began, torch.tensor([row["score"] for row in results.rows]).mean())
    assert len(json.loads(results.text())) == STEPS * rows * most


if __name__ == "__main__":
    main()
