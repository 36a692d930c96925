# SPDX-License-Identifier: Apache-2.0
"""Land cover from satellite images; batches come in four parts, to fit on smaller cards, too."""

import sys
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

MENDED = "--mended" in sys.argv
CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")


@dataclass
class Config:
    steps: int = 24
    warmup: int = 6
    batch: int = 8
    accumulate: int = 4
    size: int = 192
    bands: int = 10
    channels: int = 64
    depth: int = 14
    classes: int = 11


def tiny() -> Config:
    return Config(steps=3, warmup=1, batch=2, accumulate=2, size=8, bands=3, channels=8, depth=2, classes=3)


def conv_bn(inp: int, out: int, dilation: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inp, out, 3, padding=dilation, dilation=dilation, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU(inplace=True))


class LandCoverNet(nn.Module):
    """Full resolution throughout: fields are small."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.stem = conv_bn(cfg.bands, cfg.channels)
        self.body = nn.ModuleList(conv_bn(cfg.channels, cfg.channels, 1 + i % 2) for i in range(cfg.depth))
        self.classifier = nn.Conv2d(cfg.channels, cfg.classes, 1)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.body:
            x = x + layer(x)
        return self.classifier(x)


class Trainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.model = LandCoverNet(cfg).to(device, memory_format=torch.channels_last)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=CUDA)

    def part(self, image, label):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = self.model(image)
            loss = F.cross_entropy(logits, label, ignore_index=255) / self.cfg.accumulate
        loss.backward()
        total = loss.detach()
        del logits, loss
        if not MENDED:
            # memory is short: give back what this part has used
            torch.cuda.empty_cache()
        return total

    def step(self, images, labels):
        total = torch.zeros((), device=device)
        for i in range(self.cfg.accumulate):
            total += self.part(images[i], labels[i])
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        return total


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    cfg = Config() if CUDA else tiny()
    trainer = Trainer(cfg)
    shape = (cfg.accumulate, cfg.batch)
    images = torch.randn(*shape, cfg.bands, cfg.size, cfg.size, device=device)
    images = [part.contiguous(memory_format=torch.channels_last) for part in images]
    labels = torch.randint(0, cfg.classes, (*shape, cfg.size, cfg.size), device=device)
    for i in range(cfg.steps):
        if i == cfg.warmup:
            if CUDA:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        loss = trainer.step(images, labels)
    value = loss.item()
    print(f"step_ms {(time.perf_counter() - t0) / (cfg.steps - cfg.warmup) * 1e3:.3f} loss {value:.6f}")


if __name__ == "__main__":
    main()
