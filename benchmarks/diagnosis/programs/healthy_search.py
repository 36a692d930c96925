# SPDX-License-Identifier: Apache-2.0
"""Exact search: the nearest of a million vectors, by products in bf16 with a part of them at a time."""

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


class Questions(nn.Module):
    """Questions as vectors of the same space as the answers."""

    def __init__(self, given: int, width: int, wanted: int) -> None:
        super().__init__()
        self.up, self.mix, self.out = (
            nn.Linear(given, width),
            nn.Linear(width, width),
            nn.Linear(width, wanted),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.out(F.gelu(self.mix(F.gelu(self.up(x))))), dim=-1)


class Index:
    """Unit vectors in parts; the best of each part meet the best so far."""

    def __init__(self, vectors: torch.Tensor, part: int) -> None:
        self.vectors, self.part = vectors, part
        self.scores: torch.Tensor | None = None

    def search(self, questions: torch.Tensor, best: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.scores is None:
            self.scores = questions.new_empty(len(questions), self.part)
        scores = questions.new_empty(len(questions), 0)
        numbers = torch.empty(len(questions), 0, dtype=torch.int64, device=questions.device)
        for start in range(0, len(self.vectors), self.part):
            torch.mm(questions, self.vectors[start : start + self.part].mT, out=self.scores)
            found, places = self.scores.topk(best, dim=1, sorted=False)
            scores = torch.cat((scores, found), dim=1)
            numbers = torch.cat((numbers, places.add_(start)), dim=1)
        scores, places = scores.topk(best, dim=1)
        return scores, numbers.gather(1, places)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, given, width, size, vectors, part, best = (
        (2048, 768, 4096, 512, 1 << 20, 1 << 17, 16) if DEVICE == "cuda" else (4, 6, 8, 8, 64, 16, 3)
    )
    model = Questions(given, width, size).to(DEVICE, torch.bfloat16)
    known = F.normalize(torch.randn(vectors, size, device=DEVICE, dtype=torch.bfloat16), dim=-1)
    index = Index(known, part)
    asked = torch.randn(4, rows, given, device=DEVICE, dtype=torch.bfloat16)
    right = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        scores, numbers = index.search(model(asked[step % 4]), best)
        right += (numbers % 10 == 0).any(dim=1).sum()
    report(began, scores.float().mean() + right / (STEPS * rows))


if __name__ == "__main__":
    main()
