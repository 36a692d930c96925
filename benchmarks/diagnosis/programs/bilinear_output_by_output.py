# SPDX-License-Identifier: Apache-2.0
"""Answers to questions about pictures: what is seen and what is asked are multiplied with each other."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 10) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Pair(nn.Bilinear):
    """Each output is a weighted sum of all products of a feature of one and a feature of the other."""

    def forward(self, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        if not MENDED:
            return super().forward(one, two)
        outputs, first, second = self.weight.shape
        half = one @ self.weight.permute(1, 0, 2).reshape(first, outputs * second)
        return torch.bmm(half.view(-1, outputs, second), two.unsqueeze(2)).squeeze(2) + self.bias


class Side(nn.Module):
    def __init__(self, features: int, width: int, shared: int) -> None:
        super().__init__()
        self.up, self.mid, self.down = (
            nn.Linear(features, width),
            nn.Linear(width, width),
            nn.Linear(width, shared),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.down(F.gelu(self.mid(F.gelu(self.up(x))))))


class Answers(nn.Module):
    def __init__(self, seen: int, asked: int, width: int, shared: int, mixed: int, answers: int) -> None:
        super().__init__()
        self.seen, self.asked = Side(seen, width, shared), Side(asked, width, shared)
        self.pair = Pair(shared, shared, mixed)
        self.norm, self.head = nn.LayerNorm(mixed), nn.Linear(mixed, answers)

    def forward(self, pictures: torch.Tensor, questions: torch.Tensor) -> torch.Tensor:
        return self.head(F.gelu(self.norm(self.pair(self.seen(pictures), self.asked(questions)))))


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, seen, asked, width, shared, mixed, answers = (
        (512, 2048, 768, 2048, 160, 160, 3000) if DEVICE == "cuda" else (6, 8, 6, 8, 4, 3, 5)
    )
    model = Answers(seen, asked, width, shared, mixed, answers).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    pictures = torch.randn(4, rows, seen, device=DEVICE)
    questions = torch.randn(4, rows, asked, device=DEVICE)
    wanted = torch.randint(0, answers, (4, rows), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        scores = model(pictures[step % 4], questions[step % 4])
        loss = F.cross_entropy(scores, wanted[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
