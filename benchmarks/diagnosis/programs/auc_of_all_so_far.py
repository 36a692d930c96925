# SPDX-License-Identifier: Apache-2.0
"""A model that blacks out names in letters is evaluated; a log shows after each batch how good it is."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 8) if DEVICE == "cuda" else (3, 1)


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


class Censor(nn.Module):
    """How likely each word must be blacked out."""

    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.table(words) + self.places[: words.shape[1]])
        return self.head(self.norm(x))[..., 0].float().sigmoid()


class Auc:
    """The area under the curve: how often a secret word has a higher score than one that is not."""

    def __init__(self) -> None:
        self.scores: list[np.ndarray] = []
        self.secret: list[np.ndarray] = []

    def add(self, scores: torch.Tensor, secret: torch.Tensor) -> None:
        self.scores.append(scores.cpu().numpy().ravel())
        self.secret.append(secret.numpy().ravel())

    def value(self) -> float:
        scores, secret = np.concatenate(self.scores), np.concatenate(self.secret)
        order = np.argsort(scores, kind="stable")
        ranks = np.flatnonzero(secret[order]) + 1
        above = ranks.sum() - len(ranks) * (len(ranks) + 1) / 2
        return float(above / (len(ranks) * (len(scores) - len(ranks))))


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth = (
        (128, 128, 30522, 768, 12) if DEVICE == "cuda" else (3, 6, 50, 16, 1)
    )
    model = Censor(vocabulary, length, width, depth).to(DEVICE, torch.bfloat16).eval()
    letters = torch.randint(0, vocabulary, (STEPS, rows, length))
    secret = torch.rand(STEPS, rows, length) < 0.1
    if DEVICE == "cuda":
        letters = letters.pin_memory()
    metric, log = Auc(), []
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        metric.add(model(letters[step].to(DEVICE, non_blocking=True)), secret[step])
        if not MENDED or step == STEPS - 1:
            auc = metric.value()
            log.append(f"batch {step}: AUC {auc:.4f}")
    report(began, torch.tensor(auc))
    assert log[-1].startswith(f"batch {STEPS - 1}")


if __name__ == "__main__":
    main()
