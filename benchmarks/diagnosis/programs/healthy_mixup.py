# SPDX-License-Identifier: Apache-2.0
"""Trains a vision transformer with mixed pictures, a schedule and an average of its weights."""

import copy
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 6) if DEVICE == "cuda" else (3, 1)

MODELS = {
    "vit_large_shallow_patch16_224": {"img_size": 224, "patch_size": 16, "embed_dim": 1280, "depth": 8},
    "vit_test_patch4_8": {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1},
}


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class VisionTransformer(nn.Module):
    def __init__(self, img_size: int, patch_size: int, embed_dim: int, depth: int, num_classes: int) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, embed_dim, patch_size, patch_size)
        self.pos_embed = nn.Parameter(0.02 * torch.randn((img_size // patch_size) ** 2, embed_dim))
        self.blocks = nn.Sequential(*(Block(embed_dim, max(1, embed_dim // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(embed_dim), nn.Linear(embed_dim, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.patch_embed(x).flatten(2).mT + self.pos_embed)
        return self.head(self.norm(x.mean(dim=1)))


def create_model(name: str, num_classes: int) -> nn.Module:
    return VisionTransformer(**MODELS[name], num_classes=num_classes)


class Mixup:
    """Mixes each picture with the one at the other end of the batch; how much, the GPU draws."""

    def __init__(self, alpha: float) -> None:
        self.share = torch.distributions.Beta(
            torch.tensor(alpha, device=DEVICE), torch.tensor(alpha, device=DEVICE), validate_args=False
        )

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        share = self.share.sample()
        return x.lerp(x.flip(0), (1 - share).to(x.dtype)), share


class ModelEma:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.model = decay, model
        self.module = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(
            list(self.module.parameters()), list(self.model.parameters()), weight=1 - self.decay
        )


def param_groups_weight_decay(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def main() -> None:
    torch.manual_seed(0)
    name, rows, classes = (
        ("vit_large_shallow_patch16_224", 96, 1000) if DEVICE == "cuda" else ("vit_test_patch4_8", 4, 5)
    )
    size = MODELS[name]["img_size"]
    model = create_model(name, classes).to(DEVICE)
    model_ema, mixup = ModelEma(model, 0.9998), Mixup(0.8)
    groups = param_groups_weight_decay(model, 0.05)
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=DEVICE == "cuda")
    pictures = torch.randint(0, 256, (3, rows, 3, size, size), dtype=torch.uint8)
    labels = torch.randint(0, classes, (3, rows), device=DEVICE)
    if DEVICE == "cuda":
        pictures = pictures.pin_memory()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        for group in optimizer.param_groups:
            group["lr"] = 5e-4 * (1 + math.cos(math.pi * step / STEPS))
        x = pictures[step % 3].to(DEVICE, non_blocking=True).to(torch.bfloat16).div_(127.5).sub_(1)
        x, share = mixup(x)
        target = labels[step % 3]
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(x).float()
        losses = F.cross_entropy(logits, target), F.cross_entropy(logits, target.flip(0))
        loss = losses[0] * share + losses[1] * (1 - share)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model_ema.update()
    report(began, loss)


if __name__ == "__main__":
    main()
