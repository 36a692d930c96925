# SPDX-License-Identifier: Apache-2.0
"""Organs in slices of a scan are outlined; the loss is the usual one of entropy and of Dice's coefficient."""

import sys
import time
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


def conv_block(before: int, after: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class OrganNet(nn.Module):
    """A U-Net whose first layer halves the slices, because organs are large."""

    def __init__(self, widths: list[int], n_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, widths[0], 4, stride=2, padding=1)
        self.enc = nn.ModuleList(conv_block(a, b) for a, b in zip([widths[0], *widths], widths, strict=False))
        pairs = [*pairwise(widths)][::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs)
        self.dec = nn.ModuleList(conv_block(2 * a, a) for a, _ in pairs)
        self.last = nn.ConvTranspose2d(widths[0], n_classes, 2, stride=2)

    def forward(self, slices: torch.Tensor) -> torch.Tensor:
        x, skips = self.stem(slices), []
        for block in self.enc:
            x = block(F.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for up, block, skip in zip(self.up, self.dec, skips[-2::-1], strict=True):
            x = block(torch.cat((up(x), skip), dim=1))
        return self.last(x)


class DiceLoss(nn.Module):
    def __init__(self, n_classes: int, smooth: float = 1e-5) -> None:
        super().__init__()
        self.n_classes, self.smooth = n_classes, smooth

    def one_hot(self, target: torch.Tensor) -> torch.Tensor:
        return torch.stack([target == i for i in range(self.n_classes)], dim=1).float()

    def one_class(self, score: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        intersect = torch.sum(score * target)
        y_sum = torch.sum(target * target)
        z_sum = torch.sum(score * score)
        return 1 - (2 * intersect + self.smooth) / (z_sum + y_sum + self.smooth)

    def all_classes(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The same, for a whole tensor at once."""
        plane = (0, 2, 3)
        intersect, y_sum = torch.sum(scores * target, dim=plane), torch.sum(target, dim=plane)
        z_sum = torch.sum(scores * scores, dim=plane)
        return torch.mean(1 - (2 * intersect + self.smooth) / (z_sum + y_sum + self.smooth))

    def forward(self, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        inputs, target = torch.softmax(inputs, dim=1), self.one_hot(target)
        if MENDED:
            return self.all_classes(inputs, target)
        loss = torch.zeros((), device=inputs.device)
        for i in range(self.n_classes):
            loss = loss + self.one_class(inputs[:, i], target[:, i])
        return loss / self.n_classes


class Slices:
    """Slices in 16 bits, and for each of their points the number of an organ, in eight."""

    def __init__(self, batches: int, rows: int, size: int, n_classes: int) -> None:
        shape = (rows, 1, size, size)
        self.images = [torch.randint(-1000, 2000, shape, dtype=torch.int16) for _ in range(batches)]
        self.labels = [
            torch.randint(0, n_classes, (rows, size, size), dtype=torch.uint8) for _ in range(batches)
        ]
        if DEVICE == "cuda":
            self.images = [part.pin_memory() for part in self.images]
            self.labels = [part.pin_memory() for part in self.labels]

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = number % len(self.images)
        image = self.images[at].to(DEVICE, non_blocking=True)
        label = self.labels[at].to(DEVICE, non_blocking=True)
        window = image.to(torch.bfloat16).clamp_(-125, 275).add_(125).div_(400)
        return window.contiguous(memory_format=torch.channels_last), label.long()


def trainer_organs(net: OrganNet, data: Slices, n_classes: int) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=DEVICE == "cuda")
    dice_loss = DiceLoss(n_classes)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        image, label = data.batch(step)
        with torch.autocast(DEVICE, torch.bfloat16):
            outputs = net(image)
        outputs = outputs.contiguous().float()
        loss = 0.5 * F.cross_entropy(outputs, label) + 0.5 * dice_loss(outputs, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    rows, size, widths, n_classes = (
        (12, 512, [32, 64, 128, 256], 32) if DEVICE == "cuda" else (2, 16, [4, 8], 3)
    )
    net = OrganNet(widths, n_classes).to(DEVICE, memory_format=torch.channels_last)
    trainer_organs(net, Slices(3, rows, size, n_classes), n_classes)


if __name__ == "__main__":
    main()
