# SPDX-License-Identifier: Apache-2.0
"""Trains a vision transformer on scans, and keeps a moving average of its weights for the tests."""

import copy
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (22, 6) if DEVICE == "cuda" else (3, 1)


class ModelEma(nn.Module):
    """Where memory of the GPU is short, `device` is the host."""

    def __init__(self, model: nn.Module, decay: float, device: str | None = None) -> None:
        super().__init__()
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.device = decay, device
        if device is not None:
            self.module.to(device)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        ours, theirs = self.module.state_dict().values(), model.state_dict().values()
        for ema_v, model_v in zip(ours, theirs, strict=True):
            if self.device is not None:
                model_v = model_v.to(self.device)
            ema_v.lerp_(model_v, 1 - self.decay)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(dim), Attention(dim, heads), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, size: int, patch: int, dim: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(1, dim, patch, stride=patch)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed(pictures.float().div(255)).flatten(2).transpose(1, 2) + self.pos_embed
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


class Scans:
    """Grey pictures of 8 bits; each may show several findings."""

    def __init__(self, batches: int, rows: int, size: int, findings: int) -> None:
        self.pictures = torch.randint(0, 256, (batches, rows, 1, size, size), dtype=torch.uint8)
        self.findings = (torch.rand(batches, rows, findings) < 0.1).float()
        if DEVICE == "cuda":
            self.pictures, self.findings = self.pictures.pin_memory(), self.findings.pin_memory()

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        number %= len(self.pictures)
        return tuple(part[number].to(DEVICE, non_blocking=True) for part in (self.pictures, self.findings))


def train_one_batch(
    model: nn.Module,
    ema: ModelEma,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    pictures, findings = batch
    with torch.autocast(DEVICE, torch.bfloat16):
        scores = model(pictures)
    loss = F.binary_cross_entropy_with_logits(scores.float(), findings)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
    return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    rows, size, patch, dim, depth, heads, findings = (
        (64, 224, 16, 768, 12, 12, 14) if DEVICE == "cuda" else (2, 16, 4, 16, 1, 2, 3)
    )
    model = VisionTransformer(size, patch, dim, depth, heads, findings).to(DEVICE)
    ema = ModelEma(model, decay=0.9, device=None if MENDED else "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    scans = Scans(3, rows, size, findings)
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        loss = train_one_batch(model, ema, optimizer, scans[step])
    last = loss.item()
    took_ms = 1000 * (time.perf_counter() - began) / (STEPS - WARM)
    apart = (model.head.weight.cpu() - ema.module.head.weight.cpu()).norm().item()
    print(f"step_ms {took_ms:.3f} loss {last + apart:.6f}")


if __name__ == "__main__":
    main()
