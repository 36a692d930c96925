# SPDX-License-Identifier: Apache-2.0
"""A student learns from a larger teacher, which runs in bf16 without gradients."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (15, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self, inputs: int, width: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.first(x)))


class Distillation:
    def __init__(self, teacher: nn.Module, student: nn.Module, temperature: float = 2.0) -> None:
        self.teacher, self.student = teacher.requires_grad_(False).eval(), student
        self.temperature = temperature
        self.optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, fused=DEVICE == "cuda")

    @torch.no_grad()
    def wanted(self, x: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(self.teacher(x).float() / self.temperature, dim=-1)

    def step(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        wanted = self.wanted(x)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = self.student(x)
            own = F.log_softmax(logits / self.temperature, dim=-1)
            soft = F.kl_div(own, wanted, reduction="batchmean", log_target=True) * self.temperature**2
            loss = 0.5 * soft + 0.5 * F.cross_entropy(logits, target)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    rows, classes = (16384, 1000) if DEVICE == "cuda" else (16, 10)
    inputs, large, small = (1024, 2048, 1024) if DEVICE == "cuda" else (16, 64, 32)
    with torch.device(DEVICE):
        teacher = Classifier(inputs, large, 3, classes).to(torch.bfloat16)
        training = Distillation(teacher, Classifier(inputs, small, 4, classes))
        x = torch.randn(rows, inputs, dtype=torch.bfloat16)
        target = torch.randint(0, classes, (rows,))
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = training.step(x, target)
    report(began, loss)


if __name__ == "__main__":
    main()
