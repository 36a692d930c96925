# SPDX-License-Identifier: Apache-2.0
"""Cross entropy with smoothed labels, written out with one-hot targets over a large vocabulary."""

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


def smoothed_loss(logits: torch.Tensor, target: torch.Tensor, smoothing: float) -> torch.Tensor:
    if MENDED:
        return F.cross_entropy(logits, target, label_smoothing=smoothing)
    words = logits.shape[-1]
    logits = logits.float()
    log_p = logits - logits.logsumexp(dim=-1, keepdim=True)
    one_hot = F.one_hot(target, words).float()
    wanted = one_hot * (1 - smoothing) + smoothing / words
    return -(wanted * log_p).sum(dim=-1).mean()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class NextWord(nn.Module):
    def __init__(self, words: int, width: int, blocks: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        nn.init.normal_(self.table.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return F.linear(self.norm(self.blocks(self.table(words))), self.table.weight)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, words: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = smoothed_loss(model(words), target, 0.1)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def main() -> None:
    torch.manual_seed(0)
    vocabulary, width, rows = (50304, 512, 4096) if DEVICE == "cuda" else (500, 32, 16)
    model = NextWord(vocabulary, width, 2).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    words, target = torch.randint(0, vocabulary, (2, rows), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = train_step(model, optimizer, words, target)
    report(began, loss)


if __name__ == "__main__":
    main()
