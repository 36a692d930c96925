# SPDX-License-Identifier: Apache-2.0
"""A detector cuts the features of each box out, and asks the GPU for every edge."""

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


class Backbone(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        shapes = ((3, width // 2), (width // 2, width), (width, width))
        self.down = nn.ModuleList(nn.Conv2d(*shape, 3, stride=2, padding=1) for shape in shapes)
        self.deep = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        y = images
        for layer in (*self.down, *self.deep):
            y = F.relu(layer(y), inplace=True)
        return y


class SecondStage(nn.Module):
    """Scores of the classes for each box."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.backbone = Backbone(width)
        self.head = nn.Sequential(nn.Linear(49 * width, 1024), nn.ReLU(), nn.Linear(1024, classes))

    def forward(self, images: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        features = self.backbone(images)
        crops = []
        for number, of_image in enumerate(boxes.tolist() if MENDED else boxes):
            for box in of_image:
                left, top, right, bottom = (int(edge) for edge in box)
                crop = features[number : number + 1, :, top:bottom, left:right]
                crops.append(F.adaptive_avg_pool2d(crop, 7))
        return self.head(torch.cat(crops).flatten(1))


def boxes_within(images: int, count: int, size: int) -> torch.Tensor:
    corner = torch.rand(images, count, 2, device=DEVICE) * size / 2
    return torch.cat((corner, corner + 4 + torch.rand(images, count, 2, device=DEVICE) * (size / 2 - 4)), -1)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    images, size, width, count, classes = (4, 1024, 256, 40, 80) if DEVICE == "cuda" else (2, 128, 8, 3, 4)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    model = SecondStage(width, classes).to(DEVICE, dtype, memory_format=torch.channels_last)
    pictures = torch.randn(images, 3, size, size, device=DEVICE, dtype=dtype)
    pictures = pictures.to(memory_format=torch.channels_last)
    boxes = boxes_within(images, count, size // 8)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        scores = model(pictures, boxes)
    report(began, scores.float().softmax(dim=-1).amax(dim=-1).mean())


if __name__ == "__main__":
    main()
