# SPDX-License-Identifier: Apache-2.0
"""A vision transformer learns without labels: from small pieces of a picture, what its large ones show."""

import sys
import time

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


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Vision(nn.Module):
    """Pictures of any size become scores of kinds without a name."""

    def __init__(self, patch: int, side: int, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, width, side, side))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.into(pictures)
        x = x + F.adaptive_avg_pool2d(self.places, x.shape[-2:])
        return self.head(self.norm(self.blocks(x.flatten(2).mT).mean(dim=1)))

    def of_all(self, crops: list[torch.Tensor]) -> list[torch.Tensor]:
        """The scores of several crops of each picture."""
        if MENDED:
            sizes = sorted({crop.shape[-1] for crop in crops}, reverse=True)
            groups = [[crop for crop in crops if crop.shape[-1] == size] for size in sizes]
            return [part for group in groups for part in self(torch.cat(group)).chunk(len(group))]
        return [self(crop) for crop in crops]


class Crops:
    """Two large pieces first, and then many small ones, cut from the batch."""

    def __init__(self, large: int, small: int, many: int) -> None:
        self.sizes = [large] * 2 + [small] * many

    def __call__(self, pictures: torch.Tensor) -> list[torch.Tensor]:
        crops = []
        for size in self.sizes:
            top, left = torch.randint(0, pictures.shape[-1] - size + 1, (2,)).tolist()
            crops.append(pictures[:, :, top : top + size, left : left + size])
        return crops


def agreement(given: list[torch.Tensor], wanted: list[torch.Tensor], centre: torch.Tensor) -> torch.Tensor:
    """Every crop is to be seen as the teacher sees the large ones, but for itself."""
    sure = F.softmax((torch.stack(wanted).float() - centre) / 0.04, dim=-1)
    guess = F.log_softmax(torch.stack(given).float() / 0.1, dim=-1)
    every = -torch.einsum("tbk,sbk->ts", sure, guess) / guess.shape[1]
    return (every.sum() - every.diagonal().sum()) / (every.numel() - len(wanted))


def main() -> None:
    torch.manual_seed(0)
    rows, size, large, small, many, patch, width, depth, kinds = (
        (24, 256, 224, 96, 8, 16, 384, 12, 4096) if DEVICE == "cuda" else (2, 20, 16, 8, 2, 4, 16, 1, 6)
    )
    student, teacher = (Vision(patch, large // patch, width, depth, kinds).to(DEVICE) for _ in "st")
    teacher.load_state_dict(student.state_dict())
    teacher.requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-4, fused=DEVICE == "cuda")
    crops_of, centre = Crops(large, small, many), torch.zeros(kinds, device=DEVICE)
    pictures = torch.randn(4, rows, 3, size, size, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        crops = crops_of(pictures[step % 4])
        with torch.autocast(DEVICE, torch.bfloat16):
            with torch.no_grad():
                wanted = teacher.of_all(crops[:2])
            given = student.of_all(crops)
        loss = agreement(given, wanted, centre)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.004)
            centre.lerp_(torch.cat(wanted).float().mean(dim=0), 0.1)
    report(began, loss)


if __name__ == "__main__":
    main()
