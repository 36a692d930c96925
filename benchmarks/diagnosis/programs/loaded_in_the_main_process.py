# SPDX-License-Identifier: Apache-2.0
"""Where are houses in pictures from the air? A U-Net learns it from crops that are drawn anew each time."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (26, 8) if DEVICE == "cuda" else (3, 1)
TILE, CROP, BATCH, BASE = (640, 320, 24, 32) if DEVICE == "cuda" else (24, 16, 2, 4)
WORKERS = 12 if DEVICE == "cuda" else 1
MEAN, STD = np.float32([0.43, 0.45, 0.41]), np.float32([0.2, 0.19, 0.21])


class AerialTiles(Dataset):
    """Tiles as they were decoded: rows, columns, colours; the mask says which pixels are houses."""

    def __init__(self, tiles):
        rng = np.random.default_rng(1)
        self.images = rng.integers(0, 256, (tiles, TILE, TILE, 3), dtype=np.uint8)
        self.masks = (self.images[..., 0] > 170).astype(np.uint8)

    def __len__(self):
        return STEPS * BATCH

    def cut(self, rng, number):
        top, left = rng.integers(0, TILE - CROP, 2)
        window = np.s_[number, top : top + CROP, left : left + CROP]
        return self.images[window], self.masks[window]

    def turn(self, rng, image, mask):
        quarter = int(rng.integers(4))
        image, mask = np.rot90(image, quarter), np.rot90(mask, quarter)
        if rng.random() < 0.5:
            image, mask = image[:, ::-1], mask[:, ::-1]
        return image, mask

    def recolour(self, rng, image):
        image = image.astype(np.float32) / 255
        image = image ** np.float32(rng.uniform(0.7, 1.4))
        image = image * rng.uniform(0.8, 1.2, 3).astype(np.float32)
        image += 0.02 * rng.standard_normal(image.shape, dtype=np.float32)
        return (image.clip(0, 1) - MEAN) / STD

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        image, mask = self.turn(rng, *self.cut(rng, index % len(self.images)))
        image = np.ascontiguousarray(self.recolour(rng, image).transpose(2, 0, 1))
        return torch.from_numpy(image), torch.from_numpy(np.ascontiguousarray(mask))


def double_conv(given, wanted):
    layers = []
    for channels in (given, wanted):
        layers += [
            nn.Conv2d(channels, wanted, 3, padding=1, bias=False),
            nn.BatchNorm2d(wanted),
            nn.ReLU(True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, base, depth=4):
        super().__init__()
        sizes = [base * 2**level for level in range(depth)]
        self.down = nn.ModuleList(map(double_conv, [3, *sizes[:-1]], sizes))
        pairs = list(zip(sizes[:0:-1], sizes[-2::-1], strict=True))
        self.enlarge = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.up = nn.ModuleList(double_conv(a, b) for a, b in pairs)
        self.head = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        kept = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for enlarge, block, skip in zip(self.enlarge, self.up, kept[-2::-1], strict=True):
            x = block(torch.cat([skip, enlarge(x)], dim=1))
        return self.head(x)[:, 0]


def build_loader(dataset):
    return DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS if MENDED else 0,
        pin_memory=DEVICE == "cuda",
        drop_last=True,
        generator=torch.Generator().manual_seed(5),
    )


def dice_and_bce(logits, mask):
    prob = logits.sigmoid()
    dice = 1 - (2 * (prob * mask).sum() + 1) / (prob.sum() + mask.sum() + 1)
    return F.binary_cross_entropy_with_logits(logits, mask) + dice


def train_step(model, optimizer, images, masks):
    images = images.to(DEVICE, non_blocking=True).contiguous(memory_format=torch.channels_last)
    masks = masks.to(DEVICE, non_blocking=True).float()
    with torch.autocast(DEVICE, torch.bfloat16):
        logits = model(images)
    loss = dice_and_bce(logits.float(), masks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = UNet(BASE).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    loader = build_loader(AerialTiles(48 if DEVICE == "cuda" else 4))
    for step, (images, masks) in enumerate(loader):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        loss = train_step(model, optimizer, images, masks)
    last = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - start) / (STEPS - WARM):.3f} loss {last:.6f}")


if __name__ == "__main__":
    train()
