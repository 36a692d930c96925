# SPDX-License-Identifier: Apache-2.0
"""A compiled loss gets its temperature as a Python number that changes with the schedule."""

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


WIDTH, ROWS, CLASSES = (1024, 2048, 256) if DEVICE == "cuda" else (32, 8, 16)


def mlp(layers: int) -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, CLASSES)).to(DEVICE)


@torch.compile(backend="aot_eager" if DEVICE == "cuda" else "eager", dynamic=False)
def distillation_loss(
    student: torch.Tensor, teacher: torch.Tensor, temperature: float | torch.Tensor
) -> torch.Tensor:
    ours = F.log_softmax(student.float() / temperature, dim=-1)
    theirs = F.log_softmax(teacher.float() / temperature, dim=-1)
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True) * temperature * temperature


class Distiller:
    def __init__(self) -> None:
        self.teacher, self.student = mlp(6).requires_grad_(False), mlp(3)
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=1e-4, fused=DEVICE == "cuda")
        self.schedule = [4.0 - 3.0 * (step // 3) / STEPS for step in range(STEPS)]
        self.on_device = torch.tensor(self.schedule, device=DEVICE)

    def temperature(self, step: int) -> float | torch.Tensor:
        return self.on_device[step] if MENDED else self.schedule[step]

    def step(self, number: int, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            wanted, given = self.teacher(x), self.student(x)
        loss = distillation_loss(given, wanted, self.temperature(number))

        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    torch._dynamo.config.cache_size_limit = 64
    distiller = Distiller()
    x = torch.randn(ROWS, WIDTH, device=DEVICE)
    for number in range(STEPS):
        if number == WARM:
            began = start_clock()
        loss = distiller.step(number, x)
    report(began, loss)


if __name__ == "__main__":
    main()
