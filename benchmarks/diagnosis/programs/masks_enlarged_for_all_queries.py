# SPDX-License-Identifier: Apache-2.0
"""Cells under the microscope, each with a mask of its own: a few hundred queries ask for them."""

import sys
import time

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


class Block(nn.Module):
    """Queries look at the picture and at each other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.asked, self.shown = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.ModuleList(nn.Linear(width, width) for _ in "ab")
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def parts(self, x: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
        return x.unflatten(-1, (count, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()

    def forward(self, x: torch.Tensor, picture: torch.Tensor) -> torch.Tensor:
        (q,), (k, v) = self.parts(self.asked(self.norms[0](x)), 1), self.parts(self.shown(picture), 2)
        x = x + self.out[0](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        q, k, v = self.parts(self.qkv(self.norms[1](x)), 3)
        x = x + self.out[1](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[2](x))))


class Segmenter(nn.Module):
    def __init__(self, width: int, convs: int, depth: int, queries: int, fine: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 8, stride=8)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(convs))
        self.coarse, self.fine = nn.Conv2d(width, width, 4, stride=4), nn.Conv2d(width, 4 * fine, 1)
        self.queries = nn.Parameter(torch.randn(1, queries, width))
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(depth))
        self.norm, self.score, self.mask = nn.LayerNorm(width), nn.Linear(width, 1), nn.Linear(width, fine)

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """How sure each query is that it has found a cell, and that cell's mask in a quarter of the size."""
        x = self.stem(pictures)
        for conv in self.convs:
            x = x + F.relu(conv(x))
        fine = F.pixel_shuffle(self.fine(x), 2)
        tokens = self.coarse(x).flatten(2).transpose(1, 2)
        found = self.queries.expand(len(x), -1, -1)
        for block in self.blocks:
            found = block(found, tokens)
        found = self.norm(found)
        masks = self.mask(found) @ fine.flatten(2)
        return self.score(found)[..., 0].float().sigmoid(), masks.unflatten(2, fine.shape[2:])


def pick(parts: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    return parts.flatten(0, 1).index_select(0, best.flatten()).unflatten(0, best.shape)


def enlarged(masks: torch.Tensor) -> torch.Tensor:
    return F.interpolate(masks.float(), scale_factor=4, mode="bilinear", align_corners=False).sigmoid()


def cells(scores: torch.Tensor, masks: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The surest cells of each picture: where each is, and how sure that is over its area."""
    sure, best = scores.topk(most, dim=1)
    best = best + masks.shape[1] * torch.arange(len(masks), device=DEVICE)[:, None]
    if MENDED:
        masks = enlarged(pick(masks, best))
    else:
        masks = pick(enlarged(masks), best)
    inside = masks > 0.5
    area = inside.sum(dim=(2, 3)).clamp_(min=1)
    return inside, sure * (masks * inside).sum(dim=(2, 3)) / area


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    rows, size, width, convs, depth, queries, fine, most = (
        (8, 1024, 256, 4, 3, 200, 64, 16) if DEVICE == "cuda" else (2, 64, 16, 1, 1, 5, 4, 2)
    )
    model = Segmenter(width, convs, depth, queries, fine).to(DEVICE, torch.bfloat16).eval()
    model = model.to(memory_format=torch.channels_last)
    pictures = torch.randint(0, 256, (3, rows, size, size, 3), dtype=torch.uint8)
    if DEVICE == "cuda":
        pictures = pictures.pin_memory()
    total = torch.zeros((), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        batch = pictures[step % 3].to(DEVICE, non_blocking=True).permute(0, 3, 1, 2)
        where, quality = cells(*model(batch.to(torch.bfloat16) / 255), most)
        total += quality.mean()
    report(began, total / STEPS)
    assert where.shape == (rows, most, size, size)


if __name__ == "__main__":
    main()
