# SPDX-License-Identifier: Apache-2.0
"""A small encoder of texts learns from a large one: from its scores and from its last layer."""

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


class Encoder(nn.Module):
    """The subject of a text, along with the vector by which it is told."""

    def __init__(self, words: int, length: int, width: int, depth: int, subjects: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, subjects)

    def forward(self, texts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        vectors = self.norm(self.blocks(self.table(texts) + self.places)).mean(dim=1)
        return self.head(vectors), vectors


class Distillation:
    def __init__(self, teacher: Encoder, student: Encoder, warmth: float) -> None:
        self.teacher, self.student, self.warmth = teacher.eval().requires_grad_(False), student, warmth
        wide, narrow = teacher.head.in_features, student.head.in_features
        self.bridge = nn.Linear(narrow, wide, device=DEVICE)
        learned = [*student.parameters(), *self.bridge.parameters()]
        self.optimizer = torch.optim.AdamW(learned, lr=2e-4, fused=DEVICE == "cuda")

    def taught(self, texts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            return self.teacher(texts)

    def loss(self, texts: torch.Tensor, subjects: torch.Tensor) -> torch.Tensor:
        if not MENDED:
            wanted, shown = self.taught(texts)
        with torch.autocast(DEVICE, torch.bfloat16):
            if MENDED:
                wanted, shown = self.taught(texts)
            scores, vectors = self.student(texts)
            near = F.mse_loss(self.bridge(vectors).float(), shown.float())
        soft = F.log_softmax(scores.float() / self.warmth, dim=-1)
        wanted = F.softmax(wanted.float() / self.warmth, dim=-1)
        alike = F.kl_div(soft, wanted, reduction="batchmean") * self.warmth**2
        return F.cross_entropy(scores.float(), subjects) + alike + near

    def step(self, texts: torch.Tensor, subjects: torch.Tensor) -> torch.Tensor:
        loss = self.loss(texts, subjects)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def main() -> None:
    torch.manual_seed(0)
    rows, length, words, subjects = (96, 128, 32000, 120) if DEVICE == "cuda" else (3, 5, 30, 4)
    large, small = ((1024, 16), (512, 6)) if DEVICE == "cuda" else ((16, 2), (8, 1))
    teacher, student = (Encoder(words, length, *size, subjects).to(DEVICE) for size in (large, small))
    distillation = Distillation(teacher, student, warmth=2.0)
    texts = torch.randint(0, words, (4, rows, length), device=DEVICE)
    truth = torch.randint(0, subjects, (4, rows), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = distillation.step(texts[step % 4], truth[step % 4])
    report(began, loss)


if __name__ == "__main__":
    main()
