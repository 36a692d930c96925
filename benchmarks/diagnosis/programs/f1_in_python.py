# SPDX-License-Identifier: Apache-2.0
"""The F1 score of a tagger is counted in Python from lists, in every step."""

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


SENTENCES, LENGTH, WIDTH, TAGS = (128, 512, 256, 9) if DEVICE == "cuda" else (2, 32, 32, 9)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4000, WIDTH)
        self.mix = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, TAGS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y = self.table(tokens)
        for layer in self.mix:
            y = y + F.gelu(layer(y + y.roll(1, 1)))
        return self.head(y)


def f1_of_lists(predicted: list[int], tags: list[int]) -> float:
    hits, wrong, missed = [0] * TAGS, [0] * TAGS, [0] * TAGS
    for guess, tag in zip(predicted, tags, strict=True):
        if guess == tag:
            hits[tag] += 1
        else:
            wrong[guess] += 1
            missed[tag] += 1
    scores = [2 * h / max(2 * h + w + m, 1) for h, w, m in zip(hits, wrong, missed, strict=True)]
    return sum(scores) / TAGS


def f1_on_device(predicted: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
    table = torch.zeros(TAGS * TAGS, device=tags.device)
    table.scatter_add_(0, tags * TAGS + predicted, torch.ones_like(tags, dtype=table.dtype))
    table = table.view(TAGS, TAGS)
    return (2 * table.diagonal() / (table.sum(0) + table.sum(1)).clamp(min=1)).mean()


def main() -> None:
    torch.manual_seed(0)
    model = Tagger().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    tokens = torch.randint(0, 4000, (SENTENCES, LENGTH))
    tags = tokens.flatten() % TAGS
    tag_list = tags.tolist()
    tokens, tags = tokens.to(DEVICE), tags.to(DEVICE)
    scores: list[float | torch.Tensor] = []
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(tokens).flatten(0, 1)
            loss = F.cross_entropy(logits, tags)

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

        predicted = logits.detach().argmax(-1)
        if MENDED:
            scores.append(f1_on_device(predicted, tags))
        else:
            scores.append(f1_of_lists(predicted.tolist(), tag_list))
    report(began, loss)
    print(f"F1 {float(scores[-1]):.4f}")


if __name__ == "__main__":
    main()
