# SPDX-License-Identifier: Apache-2.0
"""Pieces of stained tissue are distinguished; each is unpacked, turned and stained anew before it is seen."""

import sys
import time
import zlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 6) if DEVICE == "cuda" else (3, 1)

# how much red, green and blue light haematoxylin, eosin and the rest take away
STAINS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]], dtype=np.float32)
UNMIX = np.linalg.inv(STAINS)


class TissueDataset(Dataset):
    def __init__(self, n_items: int, n_files: int, side: int, crop: int, n_classes: int):
        rng = np.random.default_rng(0)
        self.n_items, self.side, self.crop, self.n_classes = n_items, side, crop, n_classes
        shape = (side, side, 3)
        self.files = []
        for _ in range(n_files):
            smooth = np.cumsum(rng.integers(-2, 3, shape), axis=1) % 256
            self.files.append(zlib.compress(smooth.astype(np.uint8).tobytes(), 3))

    def __len__(self):
        return self.n_items

    def decode(self, idx):
        raw = zlib.decompress(self.files[idx % len(self.files)])
        return np.frombuffer(raw, dtype=np.uint8).reshape(self.side, self.side, 3)

    def stain_jitter(self, img, rng):
        density = -np.log((img.astype(np.float32) + 1.0) / 256.0)
        amount = np.einsum("hwc,cs->hws", density, UNMIX)
        amount = amount * rng.uniform(0.8, 1.2, 3).astype(np.float32)
        amount = amount + rng.uniform(-0.05, 0.05, 3).astype(np.float32)
        light = np.exp(-np.einsum("hws,sc->hwc", amount, STAINS))
        return np.clip(256.0 * light - 1.0, 0, 255).astype(np.uint8)

    def __getitem__(self, idx):
        rng = np.random.default_rng(idx)
        img = self.decode(idx)
        top, left = rng.integers(0, self.side - self.crop + 1, 2)
        img = img[top : top + self.crop, left : left + self.crop]
        img = np.rot90(img, k=rng.integers(4))
        if rng.random() < 0.5:
            img = img[:, ::-1]
        img = self.stain_jitter(img, rng)
        return torch.from_numpy(img.transpose(2, 0, 1).copy()), idx % self.n_classes


class PatchTransformer(nn.Module):
    def __init__(self, crop: int, patch: int, d_model: int, nhead: int, layers: int, n_classes: int):
        super().__init__()
        self.patchify = nn.Conv2d(3, d_model, patch, stride=patch)
        self.pos = nn.Parameter(0.02 * torch.randn((crop // patch) ** 2, d_model))
        layer = nn.TransformerEncoderLayer(
            d_model, nhead, 4 * d_model, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(d_model, n_classes)

    def forward(self, img):
        x = self.patchify(img).flatten(2).transpose(1, 2) + self.pos
        return self.head(self.encoder(x).mean(dim=1))


def main():
    torch.manual_seed(0)
    batch, n_files, side, crop, patch, d_model, nhead, layers, n_classes, workers = (
        (32, 32, 512, 256, 16, 384, 6, 8, 9, 12) if DEVICE == "cuda" else (2, 3, 24, 16, 8, 16, 2, 1, 3, 1)
    )
    train_set = TissueDataset(STEPS * batch, n_files, side, crop, n_classes)
    loader = DataLoader(
        train_set,
        batch_size=batch,
        shuffle=False,
        num_workers=workers if MENDED else 0,
        pin_memory=DEVICE == "cuda",
    )
    model = PatchTransformer(crop, patch, d_model, nhead, layers, n_classes).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    for step, (img, label) in enumerate(loader):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        img = img.to(DEVICE, non_blocking=True).float().div_(127.5).sub_(1)
        label = label.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(img), label)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    last = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - began) / (STEPS - WARM):.3f} loss {last:.6f}")


if __name__ == "__main__":
    main()
