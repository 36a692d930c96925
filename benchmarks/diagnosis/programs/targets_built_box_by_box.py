# SPDX-License-Identifier: Apache-2.0
"""Finds cars and people in pictures with a detector of one stage, written from its paper."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)
# width and height of the usual boxes, as shares of a picture
ANCHORS = ((0.06, 0.08), (0.12, 0.24), (0.3, 0.2), (0.35, 0.5), (0.8, 0.7))


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class RoadPictures:
    """Pictures, and for each of their boxes a row: picture, class, centre, width and height."""

    def __init__(self, batches: int, rows: int, side: int, boxes: int, cells: int, classes: int) -> None:
        shape = (rows, 3, side, side)
        self.pictures = [torch.randint(0, 256, shape, dtype=torch.uint8) for _ in range(batches)]
        if DEVICE == "cuda":
            self.pictures = [part.pin_memory() for part in self.pictures]
        # No two boxes of a picture have their centres in the same cell.
        cell = torch.rand(batches, rows, cells * cells).argsort(dim=2)[:, :, :boxes].flatten(1)
        x, y = cell % cells + torch.rand(cell.shape), cell // cells + torch.rand(cell.shape)
        size = 0.02 + 0.8 * torch.rand(*cell.shape, 2)
        image = torch.arange(rows).repeat_interleave(boxes).expand_as(cell)
        kind = torch.randint(0, classes, cell.shape)
        columns = (image, kind, x / cells, y / cells, size[..., 0], size[..., 1])
        self.boxes = torch.stack(columns, dim=2).to(DEVICE)

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = number % len(self.pictures)
        pictures = self.pictures[at].to(DEVICE, non_blocking=True)
        return pictures.to(torch.bfloat16, memory_format=torch.channels_last).div_(255), self.boxes[at]


def conv(before: int, after: int, stride: int) -> nn.Sequential:
    layer = nn.Conv2d(before, after, 3, stride, 1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(after), nn.LeakyReLU(0.1, inplace=True))


class Detector(nn.Module):
    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        pairs = zip([3, *widths], widths, strict=False)
        stages = [layer for a, b in pairs for layer in (conv(a, b, 2), conv(b, b, 1))]
        self.body, self.head = nn.Sequential(*stages), nn.Conv2d(widths[-1], len(ANCHORS) * (5 + classes), 1)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        found = self.head(self.body(pictures))
        return found.unflatten(1, (len(ANCHORS), -1)).movedim(2, -1)


class YoloLoss(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.register_buffer("anchors", torch.tensor(ANCHORS))

    def anchor_iou(self, size: torch.Tensor) -> torch.Tensor:
        """How well a box of this size and each anchor would overlap, with the same centre."""
        size = size.unsqueeze(-2)
        both = torch.minimum(size, self.anchors).prod(dim=-1)
        return both / (size.prod(dim=-1) + self.anchors.prod(dim=-1) - both)

    def build_targets(self, boxes: torch.Tensor, shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
        cells = shape[2]
        obj, wanted = torch.zeros(shape[:4], device=DEVICE), torch.zeros(shape, device=DEVICE)
        if MENDED:
            image, kind = boxes[:, :2].long().unbind(dim=1)
            best = self.anchor_iou(boxes[:, 4:]).argmax(dim=1)
            centre = boxes[:, 2:4] * cells
            gi, gj = centre.long().unbind(dim=1)
            obj[image, best, gj, gi] = 1.0
            place = torch.cat((centre - centre.floor(), (boxes[:, 4:] / self.anchors[best]).log()), dim=1)
            wanted[image, best, gj, gi, 1:] = torch.cat((place, F.one_hot(kind, self.classes)), dim=1)
            return obj, wanted
        for box in boxes:
            image, kind = int(box[0]), int(box[1])
            best = int(self.anchor_iou(box[4:]).argmax())
            gx, gy = box[2] * cells, box[3] * cells
            gi, gj = int(gx), int(gy)
            obj[image, best, gj, gi] = 1.0
            wanted[image, best, gj, gi, 1] = gx - gi
            wanted[image, best, gj, gi, 2] = gy - gj
            wanted[image, best, gj, gi, 3:5] = torch.log(box[4:] / self.anchors[best])
            wanted[image, best, gj, gi, 5 + kind] = 1.0
        return obj, wanted

    def forward(self, found: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        obj, wanted = self.build_targets(boxes, found.shape)
        centre = F.mse_loss(found[..., 1:3].sigmoid(), wanted[..., 1:3], reduction="none").sum(dim=-1)
        size = F.mse_loss(found[..., 3:5], wanted[..., 3:5], reduction="none").sum(dim=-1)
        kind = F.binary_cross_entropy_with_logits(found[..., 5:], wanted[..., 5:], reduction="none").sum(-1)
        there = F.binary_cross_entropy_with_logits(found[..., 0], obj)
        return 5 * there + (obj * (5 * centre + size + kind)).sum() / len(boxes)


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    rows, side, widths, boxes, classes = (
        (64, 416, [32, 64, 128, 256, 512], 10, 20) if DEVICE == "cuda" else (2, 16, [4, 8], 3, 3)
    )
    pictures = RoadPictures(3, rows, side, boxes, side // 2 ** len(widths), classes)
    model = Detector(widths, classes).to(DEVICE, memory_format=torch.channels_last)
    criterion = YoloLoss(classes).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        batch, truth = pictures.batch(step)
        with torch.autocast(DEVICE, torch.bfloat16):
            found = model(batch)
        loss = criterion(found.float(), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
