# SPDX-License-Identifier: Apache-2.0
"""A table of vectors that is kept on the host, where the rows of each batch are looked up and uploaded."""

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


class Vectors:
    """Pretrained vectors of words, which are not trained."""

    def __init__(self, words: int, width: int) -> None:
        self.table = torch.randn(words, width)
        if MENDED:
            self.table = self.table.to(DEVICE)

    def __call__(self, words: torch.Tensor) -> torch.Tensor:
        if MENDED:
            return F.embedding(words.to(DEVICE, non_blocking=True), self.table)
        rows = F.embedding(words, self.table)
        return rows.to(DEVICE)


class Classifier(nn.Module):
    def __init__(self, size: int, width: int, layers: int, classes: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(size, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.head(x.mean(dim=1))


class Trainer:
    def __init__(self, vectors: Vectors, model: nn.Module) -> None:
        self.vectors, self.model = vectors, model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")

    def step(self, words: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.vectors(words)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(self.model(x), target)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    words, size, width, rows = (50000, 512, 1024, 4096) if DEVICE == "cuda" else (100, 16, 32, 16)
    trainer = Trainer(Vectors(words, size), Classifier(size, width, 4).to(DEVICE))
    batches = [torch.randint(0, words, (rows, 8)) for _ in range(3)]
    if DEVICE == "cuda":
        batches = [batch.pin_memory() for batch in batches]
    target = torch.randint(0, 64, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(batches[step % 3], target)
    report(began, loss)


if __name__ == "__main__":
    main()
