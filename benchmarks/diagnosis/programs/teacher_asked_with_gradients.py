# SPDX-License-Identifier: Apache-2.0
"""Reviews are judged by a small model that learns from a large one: from its scores and from its layers."""

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass
class Size:
    width: int
    layers: int
    words: int
    length: int
    stars: int = 5


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.in_proj, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.lin1, self.lin2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.in_proj(self.ln1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.lin2(F.gelu(self.lin1(self.ln2(x))))


class Judge(nn.Module):
    """Gives what each layer has made of the first word, and how likely each number of stars is."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.words, size.width)
        self.pos = nn.Parameter(0.02 * torch.randn(size.length, size.width))
        self.layers = nn.ModuleList(Layer(size.width) for _ in range(size.layers))
        self.norm, self.classifier = nn.LayerNorm(size.width), nn.Linear(size.width, size.stars)

    def forward(self, ids: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        x, states = self.embed(ids) + self.pos, []
        for layer in self.layers:
            x = layer(x)
            states.append(x[:, 0])
        return states, self.classifier(self.norm(x[:, 0]))


def kd_loss(student: torch.Tensor, teacher: torch.Tensor, T: float) -> torch.Tensor:
    soft = F.softmax(teacher.float() / T, dim=1)
    return T * T * F.kl_div(F.log_softmax(student.float() / T, dim=1), soft, reduction="batchmean")


def layer_loss(mine: Sequence[torch.Tensor], taught: Sequence[torch.Tensor]) -> torch.Tensor:
    pairs = zip(mine, taught, strict=True)
    return torch.stack([F.mse_loss(one.float(), two.float()) for one, two in pairs]).mean()


class Distiller(nn.Module):
    def __init__(self, teacher: Size, student: Size, T: float = 4.0, alpha: float = 0.7) -> None:
        super().__init__()
        self.teacher, self.student = Judge(teacher), Judge(student)
        self.widen = nn.ModuleList(nn.Linear(student.width, teacher.width) for _ in range(student.layers))
        self.every, self.T, self.alpha = teacher.layers // student.layers, T, alpha
        self.teacher.eval()

    def taught(self, ids: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        with torch.no_grad() if MENDED else contextlib.nullcontext():
            states, scores = self.teacher(ids)
        return states[self.every - 1 :: self.every], scores

    def forward(self, ids: torch.Tensor, stars: torch.Tensor) -> torch.Tensor:
        taught, teacher_scores = self.taught(ids)
        states, scores = self.student(ids)
        mine = [widen(state) for widen, state in zip(self.widen, states, strict=True)]
        loss = self.alpha * kd_loss(scores, teacher_scores, self.T)
        loss = loss + (1 - self.alpha) * F.cross_entropy(scores.float(), stars)
        return loss + layer_loss(mine, taught)


class ReviewData:
    def __init__(self, batches: int, rows: int, size: Size) -> None:
        self.ids = torch.randint(0, size.words, (batches, rows, size.length), dtype=torch.int32)
        self.stars = torch.randint(0, size.stars, (batches, rows))
        if DEVICE == "cuda":
            self.ids, self.stars = self.ids.pin_memory(), self.stars.pin_memory()

    def batch(self, number: int) -> list[torch.Tensor]:
        at = number % len(self.ids)
        return [part[at].to(DEVICE, non_blocking=True) for part in (self.ids, self.stars)]


def train(distiller: Distiller, data: ReviewData) -> None:
    learns = [*distiller.student.parameters(), *distiller.widen.parameters()]
    optimizer = torch.optim.AdamW(learns, lr=1e-4, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        ids, stars = data.batch(step)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = distiller(ids, stars)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


def main() -> None:
    torch.manual_seed(0)
    rows, words, length = (96, 30000, 256) if DEVICE == "cuda" else (3, 40, 6)
    teacher, student = ((1024, 12), (384, 4)) if DEVICE == "cuda" else ((32, 4), (16, 2))
    large, small = Size(*teacher, words, length), Size(*student, words, length)
    train(Distiller(large, small).to(DEVICE), ReviewData(4, rows, small))


if __name__ == "__main__":
    main()
